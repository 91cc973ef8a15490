"""Reads one file of the corpus in a child process and reports on each dataset: run by ``test_corpus.py``.

A crash or a hang of libhdf5 on a broken file must not take the tests with it. A process for each file that
imported torch again would take minutes, so this program imports everything once and forks a child, which reads a file
for each line of the standard input, ``[path, most]`` as JSON: of datasets that are alike so many are looked at, or all
for null. It answers with one line of JSON, and the next child is forked where it dies, or after `FILES_OF_A_CHILD`
files: what libhdf5 and torch do at their first use takes as long as a small file.
"""

import collections
import contextlib
import json
import signal
import sys
import traceback
import warnings

import h5py
import hdf5plugin  # noqa: F401
import numpy as np
from oracle import expected, same, take
from oracle.stored import in_stored_byte_order
from support.forking import Standing

from h5stream import H5Dataset, H5StreamLoader
from h5stream.errors import H5StreamError, UnsupportedFieldError

CHILD_SECONDS = 120
FILES_OF_A_CHILD = 40
MOST_BATCHES = 20
MOST_ROWS = 50
MOST_CHOSEN_NBYTES = 1 << 24


def dataset_names(path: str, most: int | None) -> list[str]:
    """List the datasets that hard links lead to, the first `most` of those alike; none if h5py cannot open the file."""
    found: dict[object, list[str]] = collections.defaultdict(list)

    def note(name, thing):
        if isinstance(thing, h5py.Dataset):
            found[kind_of(thing) if most else None].append(name)

    with contextlib.suppress(Exception), h5py.File(path, "r", locking=False) as file:
        file.visititems(note)
    return [name for names in found.values() for name in names[:most]]


def kind_of(dataset: h5py.Dataset) -> object:
    """Give what is the same for datasets that are laid out alike."""
    try:
        made = dataset.id.get_create_plist()
        filters = [made.get_filter(number)[:3] for number in range(made.get_nfilters())]
        kept = (dataset.id.get_type().encode(), dataset.shape, dataset.maxshape)
        return (*kept, made.get_layout(), dataset.chunks, tuple(filters))
    except Exception:  # a broken one is like no other
        return dataset.name


def read_with_h5py(path: str, name: str):
    """Give the whole dataset and None, or None and why h5py cannot read it."""
    try:
        with h5py.File(path, "r", locking=False) as file:
            return in_stored_byte_order(file[name]), None
    except Exception as error:
        return None, f"{type(error).__name__}: {error}"


def examine(path: str, name: str) -> dict:
    """Read a dataset both ways; ``outcome`` is the way it was read, ``refused``, ``broken`` or ``wrong``."""
    theirs, why_not = read_with_h5py(path, name)
    report = {"name": name, "h5py": why_not}
    try:
        dataset = H5Dataset(path, name)
        outcome = "+".join(sorted({part.access for parts in dataset.layout.datasets for part in parts}))
        problem = compare(dataset, theirs) if theirs is not None else read_all(dataset)
    except H5StreamError as error:
        report |= {"error": type(error).__name__, "message": str(error)}
        if isinstance(error, UnsupportedFieldError):
            return report | {"outcome": "refused"}
        allowed = theirs is None or is_empty(theirs) or report["error"] == "ExternalDataError"
        return report | {"outcome": "refused" if allowed else "wrong"}
    except Exception:
        return report | {"outcome": "wrong", "message": traceback.format_exc()}
    return report | {"outcome": "wrong" if problem else outcome, "message": problem}


def is_empty(theirs) -> bool:
    """Tell whether there are no rows."""
    return isinstance(theirs, np.ndarray) and theirs.shape[:1] == (0,)


def read_all(dataset: H5Dataset) -> str | None:
    """Read what h5py could not read as a whole; that this succeeds is no proof of a mistake, but worth a look."""
    dataset[:]
    return "h5py cannot read it, and h5stream does not complain"


def compare(dataset: H5Dataset, theirs) -> str | None:
    """Say what differs from h5py: in whole, in random rows, one by one, and through the loader."""
    theirs = expected(theirs)
    rows = len(dataset)
    if not same(dataset[:], theirs):
        return "read in whole, it differs from h5py"
    chosen = np.random.default_rng(rows).integers(0, rows, size=rows_to_choose(dataset))
    if not same(dataset[chosen], take(theirs, chosen)):
        return f"rows {chosen.tolist()} differ from h5py"
    for row in chosen[:3]:
        if not same(dataset[[row]], take(theirs, [row])):
            return f"row {row} alone differs from h5py"
    batch_size = max(7, -(-rows // MOST_BATCHES))
    # Batches cross windows; of millions of rows the windows are small, because each batch's rows are worked out anew.
    window = 3 * batch_size if rows < 1_000_000 else batch_size // 2
    loader = H5StreamLoader(dataset, batch_size, shuffle=True, num_workers=2, window=window)
    seen = np.zeros(rows, dtype=np.int64)
    promised = [np.fromiter(batch, np.int64, len(batch)) for batch in loader.batch_sampler]
    for numbers, batch in zip(promised, loader, strict=True):
        seen[numbers] += 1
        if not same(batch, take(theirs, numbers)):
            return f"the loader's rows {list(numbers)[:10]} ... differ from h5py"
    return None if (seen == 1).all() else "the loader did not give each row once"


def rows_to_choose(dataset: H5Dataset) -> int:
    """Count the rows to draw: fewer where one of them is megabytes."""
    row_nbytes = sum(field.row_nbytes for field in dataset.layout.fields)
    return max(3, min(MOST_ROWS, MOST_CHOSEN_NBYTES // max(1, row_nbytes)))


def report_on(path: str, most: int | None) -> dict:
    """Report on the datasets of a file."""
    names = dataset_names(path, most)
    report = {"datasets": [examine(path, name) for name in names], "file": None}
    if not names:
        try:
            H5Dataset(path)
            report["file"] = "h5py lists no datasets, but h5stream opened it"
        except H5StreamError as error:
            report["file"] = type(error).__name__
    return report


def answer(line: str) -> str:
    """Report on the file that is asked for; an exception that nobody foresaw ends the child with its traceback."""
    path, most = json.loads(line)
    signal.alarm(CHILD_SECONDS)  # the default action ends the process even inside libhdf5
    try:
        return json.dumps(report_on(path, most), default=str)
    finally:
        signal.alarm(0)


def main() -> None:
    warnings.simplefilter("error")
    # From Python 3.12 on forking beside other threads warns; here they are idle pools of NumPy and torch.
    warnings.filterwarnings("ignore", "This process", DeprecationWarning)
    warnings.filterwarnings("ignore", "the shuffle is weak", UserWarning)  # windows are tiny on purpose
    child = Standing(answer)
    for line in sys.stdin:
        if child.asked == FILES_OF_A_CHILD:
            child.end()
            child = Standing(answer)
        said = child.ask(line)
        if said is None:
            said = json.dumps({"died": child.end()})
            child = Standing(answer)
        sys.stdout.write(said + "\n")
        sys.stdout.flush()
    child.end()


if __name__ == "__main__":
    main()
