"""Which rows, when: pure functions of seed, epoch, rank and the shape of the data.

No files, no threads, no tensors. An order is never changed by threads, workers or timing.
"""
