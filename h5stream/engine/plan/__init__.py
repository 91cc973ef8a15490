"""Plans of a window: which bytes are read, and where the rows in them go.

One file for each way in which rows are stored. Imports `storage`, `order` and the engine's slots.
Start with `tasks`, then `chunks`.
"""
