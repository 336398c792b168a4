"""Lesson 10, production: torch's ZeroRedundancyOptimizer and FSDP2.

Each exercise is a module. make_zero1 and make_zero3 set up what torch ships; tied_weights repairs a program; lora saves
what is trained; resume loads the states that any number of ranks has saved. data has the model of the exercises.
"""
