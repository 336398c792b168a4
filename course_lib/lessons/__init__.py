"""The lessons: a folder for each, and in it a file for each exercise, `quiz.py` and `data.py`."""
