"""The `course` command, with one module for each subcommand."""

from . import lean as lean
