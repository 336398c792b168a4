"""The check of a solution, and the diagnosis of its mistake."""
