"""Ranks as threads of this process, with real gloo between them."""
