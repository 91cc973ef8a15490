"""Numbers and words: sizes as texts, limits of the machine, file systems, names.

Imports nothing of ours but `errors`. Every room may import it.
Start with `limits` (what a process may use) and `texts` (numbers as people write them).
"""
