"""Threads that behave like processes: own random numbers, output and environment variables, and a way to stop them."""
