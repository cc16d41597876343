"""Kernels compiled for GPUs that are not here, CUDA on the host, sanitizers."""
