"""Lesson 05, ZeRO-2: gradients, from hooks that hand them over up to a ZeRO-2 of one's own.

Each exercise is a module; data holds what they share. The later ones are built from the earlier:
hand_over, start_reduction -> reduce_during_backward. clip_shards works on the shards that these leave; repair is a
stage 2 with one owner for each parameter.
"""
