"""Make random chunked datasets that may grow, for a while, and compare what we read of each with h5py.

    python tools/fuzz_maxshape.py --minutes 30

The files are those of `tests/chunked_files.py`: every kind of chunk index, allocation and fill time, resized up and
down, written in part, with filters and without. Ends with status 1 at the first difference, and prints the file.
"""

from __future__ import annotations

import argparse
import collections
import sys
import tempfile
import time
from pathlib import Path

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from chunked_files import ChunkedFile, check_like_h5py, chunked_files  # type: ignore[import-not-found]
from making import index_type  # type: ignore[import-not-found]

AT_ONCE = 500


def main(arguments: list[str] | None = None) -> int:
    """Compare until the time is over; gives the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=None, help="of the random files; by default the time")
    options = parser.parse_args(arguments)
    number = int(time.time()) if options.seed is None else options.seed
    end = time.monotonic() + 60 * options.minutes
    counts: collections.Counter[str] = collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "case.h5"

        @settings(
            max_examples=AT_ONCE,
            database=None,
            deadline=None,
            verbosity=Verbosity.quiet,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=chunked_files())
        def compare(case: ChunkedFile) -> None:
            if time.monotonic() < end:
                how = check_like_h5py(case, path)
                counts[
                    how if "not" in how else f"{index_type(path)}, {'first' if case.grows_first else 'other'} axis"
                ] += 1

        while time.monotonic() < end:
            print(f"seed {number}: {sum(counts.values()):,} files compared", flush=True)
            try:
                seed(number)(compare)()
            except Exception as error:
                print(f"DIFFERENT (seed {number}): {error}\n{''.join(getattr(error, '__notes__', []))}")
                return 1
            number += 1
    for what, count in sorted(counts.items()):
        print(f"{count:>9,}  {what}")
    print(f"{sum(counts.values()):,} files, 0 differences")
    return 0


if __name__ == "__main__":
    sys.exit(main())
