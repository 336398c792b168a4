"""ZeRO, from data parallel to stage 3."""
