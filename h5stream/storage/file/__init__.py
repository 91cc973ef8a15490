"""One HDF5 file: what is in it, how each dataset is stored, and rows through h5py.

Imports the rooms of storage above it. Start with `discovery`, then `stored`.
"""
