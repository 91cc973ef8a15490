"""A suggestion is a frozen value that prints its working and becomes JSON."""

import dataclasses
import functools
import importlib
import json
import pkgutil
import tempfile

import numpy as np
import pytest
import torch
from support.making import write_datasets

import h5stream.advice
from h5stream.advice import Suggestion
from h5stream.advice.diagnose import diagnose
from h5stream.advice.tune import tune
from h5stream.training import arithmetic, preset_for, validation_batch
from h5stream.training.measured import find_batch_size


def tuning():
    with tempfile.TemporaryDirectory() as folder:
        path = write_datasets(f"{folder}/a.h5", x=np.zeros((1000, 2), "f4"))
        return tune(path, batch_size=100, seconds=0.001)


MADE = {
    "Preset": lambda: preset_for("RTX 3070"),
    "ValidationBatch": lambda: validation_batch(64),
    "DataLoaderMemory": lambda: arithmetic.dataloader_memory(row_bytes=4, batch_size=4, workers=2),
    "LoaderMemory": lambda: arithmetic.loader_memory(row_bytes=4, batch_size=4),
    "GpuMemory": lambda: arithmetic.gpu_memory(100, optimizer="adam", batch_size=4, memory_gib=8),
    "Accumulation": lambda: arithmetic.accumulation_for(100, 30, rows=1000),
    "LearningRate": lambda: arithmetic.learning_rate_for(64, old_batch_size=32, old_lr=0.1),
    "WhatToTryFirst": lambda: arithmetic.what_to_try_first(preset_for("RTX 3070").setting),
    "BatchSearch": lambda: find_batch_size(lambda rows: None, 4),
    "Diagnosis": lambda: diagnose([torch.zeros(4)] * 3, lambda batch: None, seconds=0.001),
    "Tuning": tuning,
}


@functools.cache
def made(name):
    return MADE[name]()


@pytest.fixture(params=MADE)
def suggestion(request):
    return made(request.param)


def test_every_suggestion_prints_its_answer_and_its_arithmetic(suggestion):
    text = str(suggestion)
    assert text.startswith(f"{suggestion.title}: {suggestion.answer}")
    assert suggestion.arithmetic
    assert all(line in text for line in suggestion.arithmetic + suggestion.caveats + suggestion.sources)


def test_every_suggestion_becomes_json(suggestion):
    back = json.loads(json.dumps(suggestion.to_dict()))
    assert set(back) == {field.name for field in dataclasses.fields(suggestion)} - {"figures"} | set(suggestion.figures)


def test_every_kind_of_suggestion_is_tried_here():
    for module in pkgutil.iter_modules(h5stream.advice.__path__):
        importlib.import_module(f"h5stream.advice.{module.name}")
    tried = {type(made(name)) for name in MADE}
    missing = {kind.__name__ for kind in Suggestion.__subclasses__()} - {kind.__name__ for kind in tried}
    # Measured on a model, in test_activations.py.
    assert missing <= {"ActivationMemory"}
