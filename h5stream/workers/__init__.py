"""Processes that work for this one: Python for samples and batches, and a wall against crashes.

The only home of processes. Of use to any kind of work: `starting` and `worker` (a process is started, watched, spoken
with and ended; `child` is the other side), `memory` (batches in memory that both sides map) and `connection` (messages,
and errors with their tracebacks). On top of them, workers that apply the user's functions: `sample_engine` is the
parent's side, `samples` the other, and what is done to a batch, wherever that is. `guard` lets a child open a file
first.
"""
