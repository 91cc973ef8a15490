"""Processes that work for this one: Python for each sample, the whole loader, and a wall against crashes.

The only home of processes. Apart from each other, and of use to any kind of work: `starting` and `worker` (a process is
started, watched, spoken with and ended), `memory` and `memory` (batches in memory that both sides map), `connection`
and `connection` (messages, and errors with their tracebacks). On top of them the loader in a child, whose seam is the
finished batch: `engine` is the parent's side, `passes` the other. And workers that apply the user's functions to
samples: `sample_engine` is the parent's side, `samples` the other, and what is done to a batch, wherever that is.
"""
