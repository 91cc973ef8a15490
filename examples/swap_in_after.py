"""`swap_in_before.py` with H5StreamLoader: the loader's name, its import, and the file instead of a Dataset."""

import argparse

import torch

from h5stream import H5StreamLoader


def main(path):
    loader = H5StreamLoader(path, batch_size=256, shuffle=True, fields=["x", "y"])
    total = torch.zeros(())
    for x, y in loader:
        total += (x.mean(1) * y).sum()
    print(f"{len(loader)} batches, {float(total):.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", metavar="train.h5", help="a file with a field x of numbers and a field y of labels")
    main(parser.parse_args().file)
