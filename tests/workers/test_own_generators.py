"""Which functions are said to draw from generators of their own, whose copies in workers draw the same numbers."""

import functools
import random
import warnings

import numpy as np
import pytest
import torch
from numpy.random import rand
from support.sample_files import write_sample
from support.seeded import SeededLoader as H5StreamLoader

from h5stream.errors import OwnGeneratorWarning

RNG, PYTHONS = np.random.default_rng(0), random.Random(0)
TORCHS = torch.Generator()
DRAW = RNG.random


def by_numpy(_):
    return RNG.random()


class Pipeline:
    """One of albumentations, as far as random numbers go."""

    def __init__(self):
        self.random_generator = np.random.default_rng()

    def set_random_seed(self, seed):
        self.random_generator = np.random.default_rng(seed)

    def __call__(self, *, image):
        return image * self.random_generator.random()


PIPELINE = Pipeline()


class Augment:
    def __init__(self):
        self.pipeline = Pipeline()

    def __call__(self, sample):
        return self.pipeline(image=sample)


def closed_over():
    chance = np.random.default_rng()
    return lambda _: chance.random()


OWN = {
    "RNG": by_numpy,
    "PYTHONS": lambda _: [PYTHONS.random() for _ in range(2)],
    "TORCHS": lambda _: torch.rand(2, generator=TORCHS),
    "by_numpy.RNG": lambda sample: by_numpy(sample),
    "DRAW": lambda _: DRAW(),
    "chance": lambda _, chance=np.random.RandomState(0): chance.rand(),  # noqa: B008
    "PIPELINE.random_generator": lambda sample: PIPELINE(image=sample),
    "pipeline.random_generator": Augment(),
    "Generator": functools.partial(lambda generator, _: generator.random(), RNG),
    "chance of a closure": closed_over(),
}


class SaysRng:
    RNG = 3

    def __call__(self, _):
        return self.RNG


FINE = [
    lambda _: np.random.default_rng(np.random.randint(2**32)).random(),
    lambda sample: (PIPELINE.set_random_seed(np.random.randint(2**32)), PIPELINE(image=sample)),
    lambda _: (TORCHS.manual_seed(torch.initial_seed()), torch.rand(2, generator=TORCHS)),
    lambda sample: rand() + random.random() + np.random.rand() + float(torch.rand(())) + len(sample),
    SaysRng(),
    print,
    torch.nn.Dropout(),
]


@pytest.fixture
def sample(tmp_path):
    return write_sample(tmp_path, rows=40)


def loader(sample, function, **given):
    given = {"sample_transform": function, "sample_workers": 2, "multiprocessing_context": "fork", **given}
    return H5StreamLoader(sample.path, 10, fields="x", **given)


@pytest.mark.parametrize("name", OWN)
def test_a_generator_that_is_not_seeded_for_each_sample_is_warned_of_by_name(sample, name):
    said = f"sample_transform= reaches '{name.split()[0]}'.*sample_workers=2"
    with pytest.warns(OwnGeneratorWarning, match=said) as told:
        loader(sample, OWN[name]).close()
    assert [one.filename for one in told] == [__file__], "it names the line that made the loader"


@pytest.mark.parametrize("function", FINE)
def test_functions_that_seed_what_they_draw_from_are_not_warned_of(sample, function):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader(sample, function).close()


def test_nothing_is_said_without_workers_or_where_their_start_reaches_the_generator(sample):
    def start(number):
        global RNG
        RNG = np.random.default_rng(number)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader(sample, by_numpy, sample_workers=0).close()
        loader(sample, by_numpy, worker_init_fn=start).close()


def test_whole_batches_and_collating_are_looked_at_too(sample):
    for name, more in (("collate_fn", {}), ("batch_transform", {"transform_workers": 2})):
        with pytest.warns(OwnGeneratorWarning, match=f"{name}= reaches 'RNG'"):
            loader(sample, torch.neg, **{name: by_numpy}, **more).close()
