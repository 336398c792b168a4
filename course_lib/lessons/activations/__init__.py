"""Lesson 08, activations: what forward keeps for backward, and what offload sends over the bus.

Progress is stored under `activations.activation_bytes` and `activations.recompute`: they were in lesson 07 at first.
"""
