"""Copying to memory that is not read soon: past the cache, which keeps what was in it."""

from __future__ import annotations

from h5stream.compiled.instructions import LINE, copy_bytes, fence, stream_line
from h5stream.compiled.jit import jit


@jit
def copy_past_cache(target, source, count):
    """Copy so many bytes from one address to another, whole lines past the cache."""
    head = min(-target % LINE, count)
    body = (count - head) // LINE * LINE
    copy_bytes(target, source, head)
    for at in range(head, head + body, LINE):
        stream_line(target + at, source + at)
    copy_bytes(target + head + body, source + head + body, count - head - body)
    fence()
