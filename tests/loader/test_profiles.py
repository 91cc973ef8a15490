"""Profiles: what is written is what is read, and what is given goes before what is written."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.amounts import examples
from support.making import write_datasets

from h5stream import H5StreamLoader
from h5stream.errors import OptionError
from h5stream.profiles import Profile, arguments_from, read_profile, write_profile


@pytest.fixture
def file(tmp_path):
    return write_datasets(tmp_path / "a.h5", x=np.arange(50), y=np.arange(50), z=np.arange(50))


def written(tmp_path, **parts):
    path = tmp_path / "p.toml"
    write_profile(Profile(**({"dataset": "", "fields": None, "loader": {}} | parts)), path)
    return path


@given(
    dataset=st.text(st.characters(codec="utf-8")),
    fields=st.none()
    | st.text(st.characters(codec="utf-8"))
    | st.lists(st.text(st.characters(codec="utf-8"))).map(tuple),
    workers=st.integers(0, 10**6),
    rate=st.floats(allow_nan=False, allow_infinity=False),
)
@examples(100)
def test_what_is_written_is_what_is_read(dataset, fields, workers, rate, tmp_path_factory):
    profile = Profile(
        dataset=dataset,
        fields=fields,
        loader={"num_workers": workers},
        measured={"rows_per_s": rate, "machine": dataset},
    )
    path = tmp_path_factory.getbasetemp() / "p.toml"
    write_profile(profile, path)
    assert read_profile(path) == profile


def test_a_loader_is_made_of_it(file, tmp_path):
    path = written(tmp_path, dataset=file, fields=("x", "y"), loader={"batch_size": 7, "num_workers": 1, "window": 14})
    with H5StreamLoader.from_profile(path) as loader:
        assert (loader.batch_size, loader.num_workers, loader.window_size.window_rows) == (7, 1, 14)
        assert [len(part) for part in next(iter(loader))] == [7, 7]


def test_what_is_given_goes_before_what_is_written(file, tmp_path):
    path = written(tmp_path, dataset="/nowhere.h5", fields=("x", "y"), loader={"batch_size": 7, "num_workers": 1})
    with H5StreamLoader.from_profile(path, file, batch_size=5, fields="z") as loader:
        assert loader.batch_size == 5
        assert next(iter(loader)).shape == (5,)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[loader]\nnum_workers = true\n", r"p\.toml': \[loader\] num_workers must be a number, not True"),
        ("[loader]\nprefetch_factor = '2'\n", "prefetch_factor must be a number, not '2'"),
        ("[loader]\nprefetch_factor = 0\n", "prefetch_factor= takes a positive number of batches, not 0"),
        ("[loader]\nwindow_device = 'cpu'\n", "not 'window_device'"),
        ("[loader]\nshuffle = 'no'\n", "shuffle must be true or false, not 'no'"),
        ("[loader]\nspeed = 9\n", "not 'speed'"),
        ("[loader]\nseed = 1\n", "not 'seed'"),
        ("loader = 3\n", "must be tables"),
        ("[loader\n", "is not TOML"),
    ],
)
def test_a_wrong_profile_is_refused_by_name(tmp_path, text, message):
    path = tmp_path / "p.toml"
    path.write_text(text)
    with pytest.raises(OptionError, match=message):
        H5StreamLoader.from_profile(path, "a.h5")


@pytest.mark.parametrize(
    ("loader", "arguments", "shuffled"),
    [
        ({}, {}, True),
        ({"shuffle": False}, {}, False),
        ({"shuffle": True}, {"shuffle": False}, False),
        ({"shuffle": True}, {"sampler": [3, 1, 2]}, False),
        ({"shuffle": True}, {"batch_sampler": [[3, 1], [2]]}, False),
    ],
)
def test_a_profile_trains_shuffled_unless_something_says_otherwise(file, tmp_path, loader, arguments, shuffled):
    path = written(tmp_path, dataset=file, fields="x", loader={"batch_size": 7, **loader})
    with H5StreamLoader.from_profile(path, **arguments) as made:
        assert made.shuffle is shuffled
        rows = [row for batch in made for row in batch.tolist()]
    assert (rows != sorted(rows)) is (shuffled or bool({"sampler", "batch_sampler"} & set(arguments)))


def test_a_missing_profile_says_what_writes_one_and_one_without_a_dataset_that_it_needs_one(tmp_path):
    with pytest.raises(OptionError, match="h5stream tune"):
        read_profile(tmp_path / "none.toml")
    with pytest.raises(OptionError, match="names no dataset"):
        arguments_from(written(tmp_path), None, {})
