"""Files on disk: fields, the addresses of their chunks, and how their bytes are decoded.

The only home of h5py, hdf5plugin and imagecodecs. Nothing here knows of tensors, orders or threads.
"""
