"""The blocks of memory that a rank holds: their sizes, lines and purposes, over time and at the peak."""
