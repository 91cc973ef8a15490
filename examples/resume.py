"""Stop in the middle of an epoch, come back in another process, and get exactly the rows that are left.

python examples/resume.py train.h5
"""

import argparse
import json
from pathlib import Path

from h5stream import H5StreamLoader


def open_loader(path):
    return H5StreamLoader(path, batch_size=256, shuffle=True, seed=7, fields=["x", "y"])


def first_half(path, state_path):
    """Take half an epoch, and write down where the loader is: a few numbers, counted in batches handed over."""
    with open_loader(path) as loader:
        taken = []
        for _, y in loader:
            taken.append(y.clone())
            if len(taken) == len(loader) // 2:
                break
        state_path.write_text(json.dumps(loader.state_dict()))
    return taken


def second_half(path, state_path):
    """Go on, as another process would; nothing is read twice."""
    with open_loader(path) as loader:
        loader.load_state_dict(json.loads(state_path.read_text()))
        return [y.clone() for _, y in loader]


def main(path):
    with open_loader(path) as loader:
        whole = [y.clone() for _, y in loader]
    state_path = Path(path).with_suffix(".state.json")
    halves = [*first_half(path, state_path), *second_half(path, state_path)]
    same = len(whole) == len(halves) and all(bool((a == b).all()) for a, b in zip(whole, halves, strict=True))
    print(f"{len(whole)} batches at once, {len(halves)} in two parts: {'the same' if same else 'DIFFERENT'}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", metavar="train.h5", help="a file with a field x of numbers and a field y of labels")
    main(parser.parse_args().file)
