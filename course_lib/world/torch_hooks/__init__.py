"""All uses of torch's private names, except those of dry runs and of `rank_threads/one_process.py`."""
