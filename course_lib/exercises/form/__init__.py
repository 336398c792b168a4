"""The form of an exercise: its declaration, with the edits of the reference that make mistakes and variants."""
