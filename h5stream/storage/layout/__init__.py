"""Chunk indexes, heaps and fields, and the layout that joins them.

Holds data that can be pickled; nothing is read after opening. Imports the rooms of storage above it.
Start with `layout`, then `index`; `request` and `fields` are what a user asks for.
"""
