"""Opening: from a user's request to a layout.

Imports all other rooms of storage. Start with `opening.open_layout`: `reading` goes through the files and what is in
them, `field_reader` through the fields of each, and `rows` describes those that take rows of a dataset. Fields of other
kinds are in `lookup_fields` and `object_fields`; objects that are stored alike in `objects`.
"""
