"""Worker processes: the user's functions for samples and batches, and isolation from files that crash libhdf5.

`samples` applies the user's functions to a batch, in any process; `sample_engine` passes batches through workers.
"""
