"""Lesson 06, ZeRO-3: parameters that are gathered before they are used, and freed afterwards.

Each exercise is a module; data holds what they share, unit the `Unit` that they work on. The learner's stage 3 calls
shard_params at the start, gather_ahead and sharded_forward for each unit, and start_reduction when all gradients of a
unit have arrived. gather_ahead calls start_gather.
"""
