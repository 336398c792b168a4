"""How a solution is checked, and its fault named."""
