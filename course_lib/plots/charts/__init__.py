"""Charts with two axes, whose lines and points matplotlib draws."""
