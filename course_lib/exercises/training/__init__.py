"""Training for real."""
