"""`H5Dataset`: samples by number, splits, statistics, mixtures.

Imports `storage`, `order` and `engine`. Start with `dataset`.
"""
