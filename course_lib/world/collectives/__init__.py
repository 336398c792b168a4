"""The collectives of a world: each rank's call, the calls that belong together, and the coordinator that lets them
proceed."""
