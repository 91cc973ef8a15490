"""Samples that are more than rows of numbers: boxes, ragged rows, sparse matrices, values in heaps, images.

An epoch of plain rows enters none of these files. Imports what `engine.plan` imports, and `engine.plan`.
Start with `ragged`.
"""
