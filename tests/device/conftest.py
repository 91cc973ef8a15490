from types import SimpleNamespace

import pytest
import torch

from h5stream.device import cuda as cuda_module


class RecordedCuda:
    """Two GPUs that record, for each call that could touch a device, the device that was current."""

    def __init__(self):
        self.current = 0
        self.touched = []
        self.calls = []

    def is_available(self):
        return True

    def device_count(self):
        return 2

    def current_device(self):
        return self.current

    def device(self, device):
        return _Current(self, torch.device(device).index)

    def stream(self, stream):
        return _OnStream(self, stream)

    def current_stream(self, device):
        return SimpleNamespace(index=torch.device(device).index)

    def Stream(self, device):
        return _Stream(self, torch.device(device).index)

    def Event(self, **options):
        self.touch("Event", self.current)
        return _Event(self, options)

    def touch(self, call, index):
        self.calls.append(call)
        self.touched.append(index)


class _Current:
    """Like `torch.cuda.device`: what it does on leaving makes no context."""

    def __init__(self, cuda, index):
        self.cuda, self.index = cuda, index

    def __enter__(self):
        self.before, self.cuda.current = self.cuda.current, self.index

    def __exit__(self, *error):
        self.cuda.current = self.before


class _OnStream:
    """Like `torch.cuda.stream`: on leaving it sets the device that was current, which makes a context."""

    def __init__(self, cuda, stream):
        self.cuda, self.stream = cuda, stream

    def __enter__(self):
        self.before = self.cuda.current
        self.cuda.current = self.stream.index
        self.cuda.touch("enter stream", self.stream.index)

    def __exit__(self, *error):
        self.cuda.current = self.before
        self.cuda.touch("leave stream", self.before)


class _Stream:
    def __init__(self, cuda, index):
        self.cuda, self.index = cuda, index

    def wait_event(self, event):
        self.cuda.touch("wait_event", self.index)


class _Event:
    def __init__(self, cuda, options):
        self.cuda, self.options, self.stream = cuda, options, None

    def record(self, stream):
        self.stream = stream
        self.cuda.touch("record", self.cuda.current)

    def query(self):
        return True

    def elapsed_time(self, ended):
        self.cuda.touch("elapsed_time", self.cuda.current)
        return 0.25

    def synchronize(self):
        self.cuda.touch("synchronize", self.stream.index)


@pytest.fixture
def recorded_cuda(monkeypatch):
    fake = RecordedCuda()
    monkeypatch.setattr(cuda_module, "cuda", fake)
    return fake
