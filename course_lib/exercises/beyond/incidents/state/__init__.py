"""Incidents in which no rank waits and no rank fails: the numbers are wrong."""
