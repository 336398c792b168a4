"""Pickling: what goes to a rank (a function, its arguments and what they use) and what comes back.

Ranks share no memory, as processes do not: each works on its own copy.
"""
