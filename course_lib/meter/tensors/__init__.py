"""The memory behind a tensor, and the references that keep it."""
