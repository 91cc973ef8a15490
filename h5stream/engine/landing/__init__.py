"""The ways in which rows land in slots, each in a file of its own with what plans its tasks.

`h5stream.engine.reader.way_of` chooses between them, once for each part.
"""
