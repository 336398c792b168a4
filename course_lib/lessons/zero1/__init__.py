"""Lesson 04, ZeRO-1: optimizer states, from a partition to a ZeRO-1 of one's own.

Each exercise is a module; data holds what they share. There are two ways to shard: partition -> sharded_step, with
whole parameters, and flatten -> zero1_step, with equal shards. consolidate puts the state of the first together again.
"""
