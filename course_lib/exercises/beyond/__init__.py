"""Beyond ZeRO: tensor and pipeline parallel."""
