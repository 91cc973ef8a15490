"""One HDF5 file: its datasets, their storage layouts, and reading rows through h5py.

Imports the rooms of storage above it. Start with `discovery`, then `stored`.
"""
