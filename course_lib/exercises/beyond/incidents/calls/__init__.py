"""Incidents in which ranks do not make the same calls, or make them at different times."""
