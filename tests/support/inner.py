"""What tests look at and change inside of loaders: each in one place, which changes when the inside does.

What a loader gives can be asked of it; how it came by it (that a window was read ahead, that a child hung up) cannot.
"""

import threading
import warnings

import torch.distributed as dist

from h5stream import baseline
from h5stream.advice import diagnose
from h5stream.base import limits
from h5stream.engine import footprint, sizing
from h5stream.engine import run as engine_run
from h5stream.engine.plan import chunks
from h5stream.loader import loader, route
from h5stream.staging import copying
from h5stream.storage.decode import filters
from h5stream.storage.decode.pipeline import Pipeline
from h5stream.storage.layout.access import DIRECT
from h5stream.storage.source.one_file import FileBytes

# --- what is looked at ----------------------------------------------------------------------------------------


def iterations_of(loader):
    """Give the epochs of a loader: its engine, its route, and what is read ahead."""
    return loader._iterations


def ahead_of(loader):
    """Give what is read ahead, by epoch."""
    return iterations_of(loader)._ahead


def order_of(loader, epoch):
    return loader._cursor.order(epoch)


def run_of(iterator):
    """Give the engine's pass behind an iterator."""
    return iterator._run


def change_of(run):
    """Give the condition of a run that its consumer waits for."""
    return run._batch_came


def open_batches(run):
    """Count the batches that are under way or filled."""
    return len(run._open.by_number)


def batches_to_arrange(run):
    """Give the batches whose ragged rows a reader arranges, or would next."""
    under_way = [batch for batch in run._open.by_number.values() if batch.arranging is not None]
    run._open.most += 99
    return under_way or [run._open.to_arrange()]


# --- what is changed ------------------------------------------------------------------------------------------


def around(monkeypatch, owner, name, *, before=None, after=None):
    """Call `before` with what a function is given, then that, then `after`."""
    real = getattr(owner, name)

    def wrapped(*given, **options):
        if before is not None:
            before(*given, **options)
        result = real(*given, **options)
        if after is not None:
            after(*given, **options)
        return result

    monkeypatch.setattr(owner, name, wrapped)


def fail_in_call(monkeypatch, owner, name, number, error):
    """Raise an error in a function's call of a number, the first of which is 0; give a list that grows with each."""
    calls, lock = [], threading.Lock()

    def count(*_, **__):
        with lock:
            calls.append(name)
            if len(calls) == number + 1:
                raise error

    around(monkeypatch, owner, name, before=count)
    return calls


def stream_all(monkeypatch, keep_nbytes=-1):
    """Keep no dataset in memory, but for those of so few bytes: small test files would otherwise never be streamed."""
    monkeypatch.setattr(sizing, "KEEP_NBYTES", keep_nbytes)


def default_budget(monkeypatch, nbytes):
    """Let loaders without a budget of their own share so much."""
    monkeypatch.setattr(footprint, "DEFAULT_BUDGET", nbytes)


def give_up_at_once(monkeypatch):
    """Let a run that is stopped wait for its threads no longer than a moment."""
    monkeypatch.setattr(engine_run, "STOP_S", 0.05)


def in_group(monkeypatch, rank, world_size):
    """Say that there is a process group, to those who ask for its rank and size only."""
    for name, value in (("is_initialized", True), ("get_rank", rank), ("get_world_size", world_size)):
        monkeypatch.setattr(dist, name, lambda value=value: value)


def processors(monkeypatch, count):
    monkeypatch.setattr(limits, "cpus", lambda: count)


def memory_available(monkeypatch, nbytes):
    monkeypatch.setattr(limits, "memory_available_bytes", lambda: nbytes)


def device_is(monkeypatch, backend):
    """Let every device be this."""
    for module in (loader, route):
        monkeypatch.setattr(module, "backend_for", lambda device: backend)


def pinned_copies(monkeypatch):
    """Say that CUDA is there, and give a list of what is pinned from now on."""
    seen = []
    monkeypatch.setattr(route, "is_cuda_available", lambda: True)
    monkeypatch.setattr(route, "pinned_copy", lambda batch: seen.append(batch) or batch)
    return seen


def read_in_python(monkeypatch):
    """Read and decode each chunk by itself, as one is that a kernel does not bring."""
    real = chunks.pipelines_of
    monkeypatch.setattr(chunks, "pipelines_of", lambda part, *more: real(part, *more) - (part.access != DIRECT) * 99)


def around_reads(monkeypatch, before):
    """Call `before(target)` at the beginning of each read of a file."""
    read_in_python(monkeypatch)
    around(monkeypatch, FileBytes, "read_into", before=lambda source, offset, target: before(target))


def around_decoding(monkeypatch, before):
    """Call `before(raw_nbytes)` at the beginning of the decoding of each chunk, of small ones too."""
    read_in_python(monkeypatch)
    around(monkeypatch, Pipeline, "decode", before=lambda *given, raw_nbytes, **_: before(raw_nbytes))


def no_decompressor(monkeypatch):
    """Say that no library is there by whose address C could undo a filter."""
    monkeypatch.setattr(filters, "decoder_of", lambda _: None)


def synchronized_by(monkeypatch, synchronize):
    """Let trials wait for a device of the test's own."""
    monkeypatch.setattr(diagnose, "synchronize", synchronize)


def trials_by(monkeypatch, clock):
    """Let trials tell the time by a clock of the test's own."""
    monkeypatch.setattr(diagnose, "clock", clock)


def rivals_are_forks(monkeypatch):
    """Let the process of a naive loader be a fork; tests/baseline/test_stopped.py has a new interpreter."""
    warnings.filterwarnings("ignore", "This process", DeprecationWarning)  # has threads: from Python 3.12 on
    monkeypatch.setattr(baseline, "METHOD", "fork")


def after_each_write(monkeypatch, then):
    """Call `then()` behind each piece that staging has written."""
    around(monkeypatch, copying, "_write", after=lambda *_: then())
