"""Opening: from a user's request to a layout.

Imports all other rooms of storage. Start with `opening.open_layout`.
"""
