"""A function as ``draw=``: orders as a user would write them, and what one that is wrong is told."""

import functools

import numpy as np
import pytest
from support.batches import Listed
from support.sample_files import write_sample

from h5stream import H5StreamLoader
from h5stream.errors import OptionError, StateError
from h5stream.order import Blocks, Order, Ranks, Window

ROWS, BATCH = 1000, 50
SCORE = np.random.default_rng(0).permutation(ROWS)


def curriculum(blocks: Blocks, epoch: int, ranks: Ranks) -> Order:
    """Give the easiest samples first, and each epoch some more of the hard ones."""
    share = min(ROWS, ROWS // 2 * (epoch + 1))
    return Listed(np.argsort(SCORE)[:share][ranks.rank :: ranks.world_size])


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    return write_sample(tmp_path_factory.mktemp("order"), rows=ROWS)


def named(order):
    """Give the rows of each batch of an order, by the rules of its windows alone."""
    found = [np.full(order.batch_size_of(k), -1) for k in range(order.batches)]
    for window in order.windows():
        for row, batch, within in zip(window.rows, window.batch, window.within, strict=True):
            found[batch][within] = row
    return [rows.tolist() for rows in found]


def loader_of(sample, order, **options):
    options = {"num_workers": 2, "fields": ["x", "y"], **options}
    return H5StreamLoader(sample.path, options.pop("batch_size", BATCH), draw=order, **options)


def rows_of(sample, batches):
    found = []
    for x, y in batches:
        assert sample.matches(x, y)
        found.append(y.tolist())
    return found


@pytest.mark.parametrize("options", [{}, {"num_workers": 0}, {"memory_budget": "2MiB"}])
def test_batches_are_those_of_the_order_epoch_after_epoch(sample, options):
    with loader_of(sample, curriculum, **options) as loader:
        for epoch in range(2):
            expected = named(curriculum(loader.dataset.blocks, epoch, Ranks()))
            assert len(loader) == len(expected)
            batches = iter(loader)
            assert len(batches) == len(expected)  # and not that of the epoch after it
            assert rows_of(sample, batches) == expected


@pytest.mark.parametrize("taken", [0, 1, 4])
def test_it_goes_on_where_a_state_was_saved_without_asking_for_what_was_taken(sample, taken):
    with loader_of(sample, curriculum) as loader:
        list(loader)
        batches = iter(loader)
        for _ in range(taken):
            next(batches)
        state = loader.state_dict()
    with loader_of(sample, curriculum) as later:
        later.load_state_dict(state)
        assert rows_of(sample, later) == named(curriculum(later.dataset.blocks, 1, Ranks()))[taken:]
        assert later.state_dict()["epoch"] == 2


def test_a_state_names_the_function_and_refuses_another(sample):
    with loader_of(sample, curriculum) as loader:
        state = loader.state_dict()
    assert state["fingerprint"]["order"].endswith("test_users_order.curriculum")
    for other in ({"draw": lambda *_: Listed(SCORE)}, {"shuffle": True}, {}):
        loader = H5StreamLoader(sample.path, BATCH, fields=["x", "y"], **other)
        with loader, pytest.raises(StateError, match=r"order was .*curriculum and is now"):
            loader.load_state_dict(state)
    with loader_of(sample, functools.partial(curriculum)) as loader:
        loader.load_state_dict(state)


def test_another_number_of_ranks_is_refused(sample):
    with loader_of(sample, curriculum) as loader:
        next(iter(loader))
        state = loader.state_dict()
    loader = loader_of(sample, curriculum, rank=0, world_size=2)
    with loader, pytest.raises(StateError, match=r"the state is of 1 ranks .* now 2: .* a function as draw="):
        loader.load_state_dict(state)


DECIDES = "a function as draw= decides"


@pytest.mark.parametrize(
    ("order", "options", "message"),
    [
        (curriculum, {"shuffle": True}, DECIDES),
        (curriculum, {"sampler": [0]}, DECIDES),
        (curriculum, {"batch_sampler": [[0]]}, DECIDES),
        (curriculum, {"drop_last": True}, DECIDES),
        ("x", {}, "draw= takes .*a function that makes orders or a positive number of samples, not 'x'"),
        (lambda *_: None, {}, "draw= gave None, which has no batches, batch_size_of, windows: .* h5stream.order.Order"),
        (lambda *_: [[0, 1]], {}, r"draw= gave \[\[0, 1\]\], which has no batches"),
    ],
)
def test_what_gives_no_order_or_not_the_only_one_is_refused_at_once(sample, order, options, message):
    with pytest.raises(OptionError, match=message):
        loader_of(sample, order, **options)


def window(rows, batch, within):
    return Window(rows=np.asarray(rows), batch=np.asarray(batch), within=np.asarray(within))


class Says:
    """Two batches of two rows, and windows of whatever is given."""

    batches = 2

    def __init__(self, *windows, sizes=(2, 2)):
        self.given, self.sizes = windows, sizes

    def batch_size_of(self, batch):
        return self.sizes[batch]

    def windows(self, first_batch=0):
        return iter(self.given)


FIRST = window([0, 1], [0, 0], [0, 1])


@pytest.mark.parametrize(
    ("order", "message"),
    [
        (Says(window([0, ROWS], [0, 0], [0, 1])), "gave row 1000, but there are 1,000 rows, 0 to 999"),
        (Says(window([0, -1], [0, 0], [0, 1])), "gave row -1, but there are"),
        (Says(window([0, 1], [0, 2], [0, 1])), "gave a row of batch 2, but there are 2 batches, 0 to 1"),
        (Says(window([0, 1], [0, 0], [0, 2])), "batch 0 has 2 rows, and gave it a row at place 2; places are 0 to 1"),
        (Says(window([0, 1], [0, 0], [1, 1])), "two rows for one place of batch 0"),
        (Says(window([0, 1], [0], [0, 1])), "a window of 2 rows, 1 batches and 2 places"),
        (Says(window([0.5, 1], [0, 0], [0, 1])), "whose rows are float64 of shape"),
        (Says(FIRST), "batch 1 has 2 rows, but its windows gave 0 of them"),
        (Says([0, 1]), r"gave \[0, 1\] for a window; its windows are h5stream.order.Window"),
        *(
            (Says(FIRST, sizes=(size, 2)), f"batch 0 has {size!r} rows; a batch has 1 to batch_size=50")
            for size in (0, -1, 2.5, BATCH + 1, None)
        ),
    ],
)
def test_a_window_or_a_size_that_is_wrong_is_refused_at_its_batch(sample, order, message):
    with loader_of(sample, lambda *_: order) as loader, pytest.raises(OptionError, match=message):
        list(loader)


def test_a_window_that_does_not_fit_is_refused_with_the_ways_out(sample):
    loader = loader_of(sample, lambda *_: Listed(SCORE, together=20), window=300)
    message = "a window of 1,000 rows of 20 batches, and there is room for 300 rows"
    with loader, pytest.raises(OptionError, match=message):
        list(loader)
    with loader_of(sample, lambda *_: Listed(SCORE, together=20), window=ROWS) as loader:
        assert rows_of(sample, loader) == named(Listed(SCORE))


def test_an_error_of_the_functions_own_reaches_the_loop(sample):
    def broken(blocks, epoch, ranks):
        if epoch:
            raise ZeroDivisionError
        return Listed(SCORE)

    with loader_of(sample, broken) as loader:
        assert sum(1 for _ in loader) == 20
        with pytest.raises(ZeroDivisionError):
            iter(loader)
