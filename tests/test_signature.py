"""`H5StreamLoader` takes every argument that `DataLoader` takes, at its place."""

import inspect

from each import for_each
from torch.utils.data import DataLoader

from h5stream import H5StreamLoader


def parameters(kind):
    return {name: p for name, p in inspect.signature(kind.__init__).parameters.items() if name != "self"}


THEIRS, OURS = parameters(DataLoader), parameters(H5StreamLoader)


def positional(parameters):
    return [name for name, p in parameters.items() if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]


@for_each(THEIRS)
def test_a_parameter_of_dataloader_exists_here_under_its_name_and_kind(name):
    assert name in OURS, f"DataLoader has {name}=, which H5StreamLoader does not take"
    assert OURS[name].kind == THEIRS[name].kind


def test_positional_parameters_stand_where_dataloader_has_them():
    assert positional(OURS) == positional(THEIRS)


# Defaults that differ are decisions; each has its reason here.
CHANGED_DEFAULTS = {
    "batch_size": "large batches are what this is for",
    "num_workers": "threads are free to start: as many as the cgroup allows",
}


@for_each([name for name in THEIRS if name != "dataset"])
def test_defaults_are_those_of_dataloader_but_for_what_was_decided(name):
    same = OURS[name].default == THEIRS[name].default
    assert same != (name in CHANGED_DEFAULTS)


def test_every_argument_is_kept_as_an_attribute_of_its_name(tmp_path):
    from sample_files import write_sample

    loader = H5StreamLoader(write_sample(tmp_path).path)
    missing = [name for name in THEIRS if name not in ("shuffle",) and not hasattr(loader, name)]
    assert missing == []
