"""One row per `__getitem__` through h5py: the usual way, and what `swap_in_after.py` is three lines away from."""

import argparse

import h5py
import torch
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __init__(self, path):
        self.path, self.file = path, None
        with h5py.File(path) as file:
            self.length = len(file["x"])

    def __len__(self):
        return self.length

    def __getitem__(self, row):
        self.file = self.file or h5py.File(self.path)
        return torch.from_numpy(self.file["x"][row]), int(self.file["y"][row])


def main(path):
    loader = DataLoader(Rows(path), batch_size=256, shuffle=True)
    total = torch.zeros(())
    for x, y in loader:
        total += (x.mean(1) * y).sum()
    print(f"{len(loader)} batches, {float(total):.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", metavar="train.h5", help="a file with a field x of numbers and a field y of labels")
    main(parser.parse_args().file)
