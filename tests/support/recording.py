"""What the files are really asked for, by the system's own account."""

import numpy as np

from h5stream.compiled import _native as kernels
from h5stream.storage.source.one_file import FileBytes


def asked_for():
    """Bytes and calls of this thread's reads before this look, and after it."""
    with open("/proc/thread-self/io", "rb", buffering=0) as file:
        text = file.read()
    found = dict(line.split(b": ") for line in text.splitlines())
    before = np.array([int(found[b"rchar"]), int(found[b"syscr"])])
    return before, before + np.array([len(text), 2])  # the look itself is two calls, of which the second finds the end


def record_reads(monkeypatch):
    """Give a list that gets the bytes of each read from now on; of a kernel's reads the first has them all."""
    seen, read_into = [], FileBytes.read_into

    def recording(source, offset, target):
        seen.append(target.nbytes)
        read_into(source, offset, target)

    def recording_kernel(kernel):
        def called(*arguments):
            begin = asked_for()[1]
            done = kernel(*arguments)
            nbytes, reads = asked_for()[0] - begin
            seen.extend([nbytes] + [0] * (reads - 1) if reads else [])
            return done

        return called

    monkeypatch.setattr(FileBytes, "read_into", recording)
    monkeypatch.setattr(kernels, "land", recording_kernel(kernels.land))
    return seen


def record_decoded(monkeypatch):
    """Give a list that gets the bytes that chunks have once they are decoded, from now on."""
    seen, land = [], kernels.land

    def recording(*arguments):
        _, decoded_nbytes, decode_ns = arguments[-1][5:8].tolist()
        done = land(*arguments)
        if arguments[-1][7] > decode_ns:  # else it read what needs no decoding
            seen.append(int(arguments[-1][6]) - decoded_nbytes)
        return done

    monkeypatch.setattr(kernels, "land", recording)
    return seen
