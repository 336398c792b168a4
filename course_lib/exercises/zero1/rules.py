"""The older name of a rule's module; the last lesson that imports it deletes this file."""

from .data import sends_no_more as sends_no_more
