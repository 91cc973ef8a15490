"""Augment images with Pillow in other processes, the same way however many there are.

python examples/image_augmentation.py images.h5 2
"""

import argparse
import random
import sys

import numpy as np
import torch

from h5stream import H5StreamLoader

try:
    from PIL import Image, ImageEnhance
except ModuleNotFoundError:
    print("image_augmentation.py needs Pillow: pip install pillow", file=sys.stderr)
    sys.exit(2)

MEAN = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
DEVIATION = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)


def augment(sample):
    """Crop, flip, jitter and normalize one image; what is drawn here depends on seed, epoch and sample alone."""
    image = Image.fromarray(sample["image"].numpy())
    side = min(image.size)
    size = random.randint(side * 2 // 3, side)
    left, top = random.randint(0, image.width - size), random.randint(0, image.height - size)
    image = image.resize((side, side), Image.Resampling.BILINEAR, (left, top, left + size, top + size))
    if random.random() < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    for enhance in (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color):
        image = enhance(image).enhance(random.uniform(0.6, 1.4))
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1) / 255
    return {"image": (pixels - MEAN) / DEVIATION, "label": sample["label"]}


def main(path, workers):
    fields = {"image": "image", "label": "label"}
    with H5StreamLoader(
        path, 32, shuffle=True, seed=1, fields=fields, sample_transform=augment, sample_workers=workers
    ) as loader:
        for epoch in range(2):
            total = sum(float(batch["image"].double().sum()) for batch in loader)
            print(f"epoch {epoch}: {len(loader)} batches, sum {total:.3f}")


if __name__ == "__main__":  # workers import this file to find `augment`
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", metavar="images.h5", help="a file with images (uint8, height x width x 3) and labels")
    parser.add_argument("workers", type=int, nargs="?", default=2, help="processes that augment (2)")
    arguments = parser.parse_args()
    main(arguments.file, arguments.workers)
