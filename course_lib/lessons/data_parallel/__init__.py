"""Lesson 03, data parallel: from one process to N, up to a DataParallel of one's own.

Each exercise is a module; data holds what they share. The learner's DataParallel is made of them: broadcast_model at
the start, then make_buckets -> average_during_backward, which calls start_averaging for each bucket. average_gradients
computes the same averages, without buckets and after backward. token_mean is the loss that these averages need.
seeds makes parameters that agree and dropout that differs.
"""
