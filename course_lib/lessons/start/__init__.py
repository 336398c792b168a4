"""Lesson 00, start here: one exercise and two questions that show how the course works."""
