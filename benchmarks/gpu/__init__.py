"""The GPU kit: what a machine with one GPU can measure in minutes, without a network. See docs/gpu.md."""
