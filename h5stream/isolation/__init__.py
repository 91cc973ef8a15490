"""The engine in a process of its own, for transforms that hold the GIL, and as a wall against crashes.

The only home of child processes. One child a loader, started at the first iteration, reads, decodes and writes
into memory that both sides map; the parent's tensors view it. `engine` is the parent's side, `child` the other.
"""
