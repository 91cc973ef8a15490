"""Stored bytes become elements: filters, plugins, images, element types, columns.

Imports `base`, `samples` and `storage.source`. Start with `filters`, then `elements`.
"""
