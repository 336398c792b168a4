"""Lesson 09, what communication costs: seconds for messages and bytes, and how many of them a step hides."""
