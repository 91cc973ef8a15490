"""Processes that work for this one: Python for samples and batches, and a wall against files that crash libhdf5.

The only home of processes. `samples` is what the user's functions do to a batch, wherever that is; `sample_engine` lets
batches go through workers, of which `worker` is one, with both sides of it; `processes` starts it, carries its errors,
and lets a child open a file first; `memory` is mapped by both.
"""
