"""Random access to bytes of files and objects, and identities that detect changes.

A file on a disk here, many files, or an object in a store, with its requests and its cache on disk.
Imports `base` and `errors`. Start with `identity`, then `one_file` and `remote`.
"""
