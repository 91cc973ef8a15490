"""The ways in which rows land in slots, each in a file of its own with its plan and its task.

Each has a class whose `plan` cuts rows of a dataset, or of a part of one, into tasks, and those tasks
(`h5stream.engine.tasks.Task`). `h5stream.engine.reader.way_of` chooses between them, once for each part.
"""
