"""Lesson 09, what communication costs: seconds for messages and bytes, and where they come from on real machines."""
