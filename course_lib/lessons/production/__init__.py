"""Lesson 10, production: torch's ZeroRedundancyOptimizer and FSDP2.

Each exercise is a module. make_zero1 and make_zero3 set up what torch ships; tied_weights repairs a program;
muon_owner_step is a step of an optimizer that needs whole matrices. data has the model of the exercises.
"""
