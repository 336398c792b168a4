"""The heart of a world: one call of a rank, which calls belong together, and the coordinator that lets them go."""
