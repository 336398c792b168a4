"""What is taught: a folder for each lesson, and in it a file for each exercise, `quiz.py` and `data.py`."""
