"""Processes that work for this one: Python for samples and batches, and a wall against files that crash libhdf5.

`samples` is what the user's functions do to a batch, wherever that is; `sample_engine` lets batches go through workers.
"""
