"""The backend `dryrun`: one rank out of any number, with tensors that have a size and no content."""
