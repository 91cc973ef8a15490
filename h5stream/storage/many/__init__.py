"""Many objects of the same kind, read as one dataset.

Imports the rooms of storage above it. Start with `members`.
"""
