"""The `course` command, with one module for each subcommand."""
