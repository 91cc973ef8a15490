"""Bytes become batches: plans, kernels, slots, and the threads that carry them out.

The only home of loader threads.
"""
