"""The bytes that a rank holds at each moment of a step, engine by engine."""
