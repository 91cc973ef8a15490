"""Benchmarks that other projects made, run as they made them, with h5stream over an HDF5 twin of the same data.

Each module has ``measure(folder, seed, checkout)``, which gives results: what is measured, by whom, and its limit.
"""
