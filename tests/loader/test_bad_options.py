"""Wrong arguments are refused at once, by a message that names the argument, the rule and the value."""

import functools

import h5py
import numpy as np
import pytest
import torch
from support.making import write_datasets
from support.sample_files import write_sample
from torch.utils.data import TensorDataset

from h5stream import (
    Balanced,
    Boxes,
    ChunkBatchSampler,
    Crop,
    Field,
    H5Dataset,
    H5StreamLoader,
    Mixture,
    Sequences,
    Sized,
    Table,
    Take,
    Values,
    Weighted,
)
from h5stream.errors import FieldLengthError, OptionError, SourceNotFoundError
from h5stream.loader.arguments import WAY_OUTS as LOADER_WAYS
from h5stream.storage.layout.field_options import WAY_OUTS as FIELD_WAYS


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_sample(tmp_path_factory.mktemp("options")).path


TWICE = {"sample_transform": len, "batch_transform": len, "sample_workers": 2}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(({"batch_size": w}, "batch_size= takes a positive whole number of rows") for w in (0, -1, 2.5, True, "8")),
        *(({"num_workers": w}, "num_workers= takes a non-negative number of reader") for w in (-1, 1.0, True, "2")),
        *(({"timeout": w}, "timeout= takes seconds, 0 or more") for w in (-1, "1", None, float("nan"), 1e10)),
        *(({"seed": w}, "seed= takes a non-negative integer, not") for w in (-1, 1.5, "1", True)),
        *(({"window": w}, "window= takes a positive number of rows, 'auto' or 'all'") for w in (0, "full", 1.5, None)),
        *(({"memory_budget": w}, "memory_budget= takes ") for w in (0, "much", "-2G", 1.5)),
        *(({"rank": w}, "rank= takes an integer of at least 0, not") for w in (-1, "0", 0.0)),
        *(({"world_size": w}, "world_size= takes an integer of at least 1, not") for w in (0, "2")),
        ({"rank": 1}, "rank= and world_size= belong together, not rank=1 with world_size=None"),
        ({"rank": 2, "world_size": 2}, "rank must be below world_size=2, not 2"),
        ({"keep": True}, "keep= takes 'auto'"),
        ({"stage_to": 7}, "stage_to= takes a folder, not 7"),
        *(({"on_error": w}, "on_error= takes 'raise' or 'skip'") for w in ("ignore", None, True)),
        ({"generator": 3}, "generator= takes a torch.Generator, not 3"),
        ({"batch_transform": 3}, "batch_transform= takes a callable or None, not 3"),
        ({"collate_fn": "x"}, "collate_fn= takes a callable or None, not 'x'"),
        ({"worker_init_fn": []}, r"worker_init_fn= takes a callable or None, not \[\]"),
        ({"sample_workers": 2}, "sample_workers= apply sample_transform= or collate_fn=: give one"),
        ({"sample_transform": 5}, "sample_transform= takes a callable or None, not 5"),
        ({"sample_transform": len, "sample_workers": -1}, "sample_workers= takes a number of processes"),
        ({**TWICE, "transform_workers": 3}, "sample_workers=2 and transform_workers=3 are the same processes"),
        ({**TWICE, "multiprocessing_context": "thread"}, "multiprocessing_context= takes 'spawn', 'forkserver' or 'fo"),
        ({"sampler": [0], "shuffle": True}, "sampler= decides the order, so shuffle= must be left out"),
        ({"sampler": [0], "world_size": 2}, "world_size=2 must be left out; shard in the sampler"),
        ({"batch_sampler": [[0]], "shuffle": True}, "batch_sampler= decides everything, so batch_size=, shuffle="),
        ({"batch_sampler": [[0]], "batch_size": 32}, "batch_sampler= decides everything"),
        ({"batch_size": None, "drop_last": True}, "batch_size=None gives single samples, so drop_last="),
        ({"fields": 3}, "fields= takes a name, a Field, a sequence or a mapping of them, not 3"),
        ({"fields": {"x"}}, "fields= takes several in an order, .* Write sorted"),
        ({"samples": 16}, r"samples= takes Sequences\(...\), .*not 16"),
        ({"samples": Sequences}, r"samples= takes Sequences\(...\), .*not <class"),
        ({"fields": [Values(range(9))]}, "none of the fields 'values' says how many samples there are"),
        ({"batch_size": ["x", "y"]}, r"not \['x', 'y'\]; fields= is given by its name"),
        ({"batch_size": 0}, "batch_size= takes a positive whole number of rows, not 0$"),
        ({"fields": []}, "fields= is empty; name at least one dataset"),
        ({"fields": ["x", 3]}, r"a field is a name or h5stream.Field\(...\), not 3"),
        ({"fields": Field("y", columns=[0])}, "this field has one number a row; leave it out"),
        ({"fields": Field("x", dtype="float31")}, "dtype= takes a torch dtype, not 'float31'. Did you .*'float32'"),
        ({"fields": Field("x", dtype="no")}, "takes a torch dtype, not 'no'. It has a name such as 'float32'"),
        ({"fields": b"x"}, "a field's name is text, not bytes: 'x', not b'x'"),
    ],
    ids=repr,
)
def test_a_wrong_argument_is_refused_at_once(path, options, message):
    with pytest.raises(OptionError, match=message) as caught:
        H5StreamLoader(path, **options)
    assert isinstance(caught.value, ValueError)


def test_a_file_that_is_not_there_and_samples_of_a_dataset_that_has_its_own_are_refused(path):
    with pytest.raises(SourceNotFoundError, match=r"^no such file: 'gone\.h5'"):
        H5StreamLoader(path, fields=["x", Field("y", file="gone.h5")])
    with pytest.raises(OptionError, match="samples= belongs to the H5Dataset that was given"):
        H5Dataset(H5Dataset(path, "x"), samples=Sequences(3))


@pytest.mark.parametrize(
    ("make", "given", "message"),
    [
        (H5StreamLoader, [3, None, [3], object()], "a source is a path, a pattern or several of them, not"),
        (lambda columns: Field("x", columns=columns), ["ab", 3, [0.5], [None]], "columns= takes a slice or column num"),
        (Field, ["", "/", None, 3], "a field's name is the path of a dataset, not"),
    ],
)
def test_what_is_given_is_of_its_kind(make, given, message):
    for one in given:
        with pytest.raises(OptionError, match=message):
            make(one)


def test_another_dataset_is_refused_with_the_way_out():
    with pytest.raises(OptionError, match=r"cannot see into a TensorDataset; give it the path.*into batch_transform="):
        H5StreamLoader(TensorDataset(torch.arange(3)))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        *(({"batch_size": 1, "sampler": [index]}, "the sampler gave") for index in (1000, -1001, 0.5, "x", True)),
        *(({"sampler": given}, "sampler= (gives|takes an iterable of) row numbers") for given in ([[0, 1], [2]], 5)),
        ({"batch_sampler": [0, 1]}, "sampler= (gives|takes an iterable of) row numbers"),
        ({"batch_sampler": [[]]}, "the sampler gave an empty batch"),
    ],
    ids=str,
)
def test_a_sampler_that_names_no_rows_or_batches_is_refused(path, given, message):
    with pytest.raises(OptionError, match=message):
        list(H5StreamLoader(path, **given))


@pytest.mark.parametrize("epoch", [-1, 1.0, True, "2"])
def test_an_epoch_is_a_non_negative_integer(path, epoch):
    with pytest.raises(OptionError, match="set_epoch takes a non-negative integer, not"):
        H5StreamLoader(path).set_epoch(epoch)


def test_the_batch_sampler_checks_its_arguments(path):
    dataset = H5Dataset(path)
    for options in ({"batch_size": 0}, {"batch_size": "3"}, {"window": 0}, {"seed": -1}, {"rank": 1}):
        with pytest.raises(OptionError, match=next(iter(options))):
            ChunkBatchSampler(dataset, **options)
    with pytest.raises(OptionError, match="needs an H5Dataset, whose chunks it knows"):
        ChunkBatchSampler([1, 2, 3])


# --- arguments under other names ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", LOADER_WAYS)
def test_an_argument_of_an_earlier_version_or_another_library_is_refused_with_what_to_write(path, tmp_path, name):
    profile = tmp_path / "a.toml"
    profile.write_text(f'[data]\ndataset = "{path}"\n')
    for make in (H5StreamLoader, functools.partial(H5StreamLoader.from_profile, profile)):
        with pytest.raises(TypeError) as caught:
            make(path, batch_size=5, **{name: None})
        assert str(caught.value) == f"H5StreamLoader has no argument {name}=: {LOADER_WAYS[name]}"


@pytest.mark.parametrize("name", FIELD_WAYS)
def test_an_argument_that_a_field_had_is_refused_with_what_to_write(name):
    with pytest.raises(TypeError) as caught:
        Field("x", **{name: None})
    assert str(caught.value) == f"Field has no argument {name}=: {FIELD_WAYS[name]}"


def test_a_misspelt_argument_gets_the_nearest_one(path):
    with pytest.raises(TypeError, match=r"^Field has no argument lokup=\. Did you mean 'lookup'\?"):
        Field("x", lokup="y")
    with pytest.raises(TypeError, match=r"^H5StreamLoader has no argument batchsize=\. Did you mean 'batch_size'\?"):
        H5StreamLoader(path, batchsize=3)


def made_by(module, name, *bases, **members):
    return type(name, bases, {"__module__": module, "__call__": lambda self, x: x, **members})


CROP = made_by("torchvision.transforms.transforms", "RandomCrop", torch.nn.Module)
COMPOSE = made_by("torchvision.transforms.v2._container", "Compose", transforms=())
FLIP = made_by("albumentations.augmentations.geometric.flip", "HorizontalFlip")
CUTMIX = made_by("torchvision.transforms.v2._augment", "CutMix", torch.nn.Module)
OF_SAMPLES = {
    "torchvision": (CROP(), "RandomCrop of torchvision"),
    "a class of one's own over it": (made_by("mine", "Crop", CROP)(), "Crop of torchvision"),
    "albumentations": (FLIP(), "HorizontalFlip of albumentations"),
    "a pipeline": (made_by("mine", "Both", transforms=[len, FLIP()])(), "Both, which has a HorizontalFlip of alb"),
    "a pipeline of theirs": (made_by("x", "Compose", COMPOSE, transforms=[CROP()])(), "Compose, which has a Random"),
    "one module behind another": (torch.nn.Sequential(torch.nn.ReLU(), CROP()), "Sequential, which has a RandomCrop"),
}


@pytest.mark.parametrize("name", OF_SAMPLES)
def test_a_transform_of_single_samples_is_refused_for_batches_with_the_line_to_write(path, name):
    transform, said = OF_SAMPLES[name]
    with pytest.raises(OptionError, match=rf"{said}.*Write sample_transform=FUNCTION, sample_workers=8"):
        H5StreamLoader(path, batch_transform=transform)
    H5StreamLoader(path, sample_transform=transform).close()


def test_what_is_made_for_batches_is_taken(path):
    of_both = made_by("torchvision.transforms.v2._container", "RandomChoice", transforms=[CUTMIX(), CUTMIX()])
    for transform in (CUTMIX(), of_both(), torch.nn.Sequential(torch.nn.ReLU()), made_by("mine", "Own")()):
        H5StreamLoader(path, batch_transform=transform).close()


HUGE = 10**20


@pytest.mark.parametrize(
    "make",
    [
        lambda: Sequences(HUGE),
        lambda: Sequences(3, stride=HUGE),
        lambda: Sequences(3, pad="edge", pad_rows=(HUGE, 0)),
        lambda: Sequences(3, axis=-HUGE),
        lambda: Sequences(3, starts="random", per_epoch=HUGE),
        lambda: Boxes((2, HUGE), at="grid"),
        lambda: Table(row=[0], length=HUGE),
        lambda: Crop(HUGE),
        lambda: Field("y", take=[0, HUGE]),
        lambda: Field("y", take=Take(axis=HUGE)),
        lambda: Sized(HUGE),
        lambda: Weighted([1.0], count=HUGE),
        lambda: Balanced([1], count=HUGE),
    ],
)
def test_a_whole_number_that_no_array_holds_is_refused(make):
    with pytest.raises(OptionError, match=r"whole numbers of at most 2\*\*63 - 1, which arrays hold, not -?1000000"):
        make()


def test_batches_and_scales_of_more_rows_than_arrays_hold_are_refused_and_seeds_are_not(tmp_path):
    path = write_datasets(tmp_path / "a.h5", y=np.arange(30), h=np.arange(60))
    with pytest.raises(OptionError, match="batch_size= takes whole numbers of at most"):
        H5StreamLoader(path, HUGE, fields="y")
    with pytest.raises(OptionError, match="the elements of a sequence takes whole numbers of at most"):
        H5Dataset(path, ["y", Field("h", take=Take(scale=HUGE))], samples=Sequences(2))
    with pytest.raises(FieldLengthError, match="has 60 elements"):
        H5Dataset(path, ["y", Field("h", take=Take(scale=10**9))], samples=Sequences(2))
    with pytest.raises(OptionError, match=r"columns=1000.* is not there: the rows have 3"):
        H5Dataset(write_datasets(tmp_path / "b.h5", v=np.zeros((4, 3))), Field("v", columns=[HUGE]))
    with pytest.raises(OptionError, match="Balanced: the share of 0 is a number of 0 or more"):
        H5StreamLoader(path, 5, fields="y", draw=Balanced(np.arange(30) % 2, shares={0: 10**400, 1: 1}))
    with pytest.raises(OptionError, match="rows are named by integers"):
        H5Dataset(path, "y").__getitems__([0, HUGE])
    with H5StreamLoader(path, 5, fields="y", seed=HUGE) as loader:
        assert sorted(torch.cat(list(loader)).tolist()) == list(range(30))


@pytest.mark.parametrize(
    "values", [np.arange(30) + 5j, np.arange(30) * 1j, [1j] * 30], ids=["both", "imaginary", "list"]
)
def test_weights_of_complex_numbers_are_refused(tmp_path, values):
    path = write_datasets(tmp_path / "a.h5", y=np.arange(30), z=np.array(values))
    for draw in (Weighted(values), Weighted("z"), Weighted("z", replacement=False)):
        with pytest.raises(OptionError, match=r"Weighted: weights= takes numbers, one a sample, .* real ones, not"):
            list(H5StreamLoader(path, 5, fields="y", draw=draw))
    with pytest.raises(OptionError, match="Mixture: weights= takes a number of 0 or more"):
        Mixture({"a": path, "b": path}, np.array([1 + 1j, 2]), fields="y")
    with pytest.raises(OptionError, match="Balanced: by= takes the name of a field, or one number or text"):
        list(H5StreamLoader(path, 5, fields="y", draw=Balanced("z")))


@pytest.mark.parametrize("nested", ["nested", "list"])
def test_sized_names_the_field_of_a_batch(tmp_path, nested):
    path = write_datasets(tmp_path / "a.h5", x=np.zeros((30, 4)), nb=np.zeros((30, 2), int))
    fields = {"x": "x", "near": Field("x", lookup="nb", ragged=nested)}
    with pytest.raises(OptionError, match="has 2 rows of 'near', and 30 of 30"):
        list(H5StreamLoader(path, 5, fields=fields, draw=Sized(1)))


@pytest.mark.parametrize("options", [{}, {"transform_workers": 1}, {"sample_workers": 1, "sample_transform": list}])
def test_a_batch_transform_that_returns_nothing_is_told(tmp_path, options):
    path = write_datasets(tmp_path / "a.h5", x=np.arange(20.0).reshape(10, 2))
    with (
        H5StreamLoader(path, 5, fields="x", batch_transform=do_nothing, **options) as loader,
        pytest.raises(Exception, match="returned None in place of a batch"),
    ):
        next(iter(loader))


def do_nothing(batch):
    """Forget to return it."""


def test_a_loader_as_a_source_is_refused_before_it_is_read(tmp_path):
    dataset = H5Dataset(write_datasets(tmp_path / "a.h5", x=np.arange(20.0)))
    for loader in (torch.utils.data.DataLoader(dataset), H5StreamLoader(dataset)):
        with pytest.raises(OptionError, match=rf"not {type(loader).__name__}; give it that \.dataset"):
            H5StreamLoader(loader)


def test_samples_of_no_category_are_no_class_of_their_own(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["x"], file["obs/kind/codes"], file["obs/kind/categories"] = np.arange(20), [0, 1, -1, 1] * 5, ["a", "b"]
        file["obs/kind"].attrs["encoding-type"] = "categorical"
    dataset = H5Dataset(path, ["x", "obs/kind"])
    with pytest.raises(OptionError, match="5 of 20 samples have the code -1"):
        H5StreamLoader(dataset, 4, draw=Balanced("obs/kind"))
    for draw in (Balanced("obs/kind", shares={"a": 1, "b": 1, -1: 0}), Balanced("obs/kind", {"a": 1, "b": 1, -1: 1})):
        with H5StreamLoader(dataset, 4, draw=draw) as loader:
            assert len([*loader]) > 0
