"""What h5stream is measured against, and the sample file it is measured on.

The rivals read through h5py on purpose; next to `storage` this is the only room that may.
"""
