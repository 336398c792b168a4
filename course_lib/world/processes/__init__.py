"""The backends `processes` and `nccl`: each rank is a process, on the CPU or with a GPU."""
