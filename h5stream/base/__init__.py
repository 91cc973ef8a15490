"""Numbers and words: sizes as texts, limits of the machine, file systems, names.

Imports only `errors`. Every folder may import it.
Start with `limits` (resources of a process) and `texts` (parsing and formatting of numbers).
"""
