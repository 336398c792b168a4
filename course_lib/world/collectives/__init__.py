"""The collectives of a world: calls, which of them belong together, and the coordinator that lets them proceed."""
