"""Lesson 07, mixed precision: what 16 bits save and what they lose.

Each exercise is a module; data holds what they share. master_step is a step of one process through masters in fp32, and
sharded_step the same with the masters in shards. masters repairs a program for FSDP2 that has none. unscale belongs to
loss scaling.
"""
