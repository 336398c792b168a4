"""`RankError` and its message: what happened, on which rank, at which line, and what to do next."""
