"""Headers of HDF5 objects, read without libhdf5: the headers of many objects are compared with that of a first one.

Imports `storage.source`. Start with `templates`.
"""
