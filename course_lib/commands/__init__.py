"""The `course` command, a module for each subcommand."""
