"""Headers of HDF5 objects, read without libhdf5: those of many objects are compared with a first one.

Imports `storage.source`. Start with `templates`.
"""
