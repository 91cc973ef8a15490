"""Bytes become batches: plans, kernels, slots, and the only threads that load."""
