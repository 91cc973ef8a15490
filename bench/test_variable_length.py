"""Values of variable length: JPEG images, and events of numbers, beside h5py and the limit.

    python -m pytest bench/test_variable_length.py --benchmark-enable --benchmark-json=variable-length.json -s

Images are held against as many threads that only decode them, from memory; events against the same bytes as plain rows.
Rounds of both take turns.
"""

from __future__ import annotations

import statistics
import threading

import h5py
import imagecodecs
import numpy as np

from bench import cases
from h5stream import Field, H5StreamLoader

ROUNDS, EPOCHS = 5, 4
OF_DECODING, OF_PLAIN_ROWS = 0.9, 0.2
IMAGES, EVENTS, MEAN_ITEMS = 1200, 40_000, 400


def write_images(path):
    """Write smooth images of 224 x 224 with some noise, as photographs have."""
    rng = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset("image", (IMAGES,), dtype=h5py.vlen_dtype("u1"))
        for k in range(IMAGES):
            base = rng.integers(0, 255, (8, 8, 3)).repeat(28, 0).repeat(28, 1)
            image = np.clip(base + rng.integers(-12, 13, base.shape), 0, 255).astype("u1")
            dataset[k] = np.frombuffer(imagecodecs.jpeg8_encode(image, level=90), "u1")
        file["label"] = np.arange(IMAGES)


def write_events(path):
    """Write events of unlike lengths, and as many bytes as rows of one length."""
    rng = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        events = file.create_dataset("event", (EVENTS,), dtype=h5py.vlen_dtype("f4"))
        lengths = rng.integers(0, 2 * MEAN_ITEMS, EVENTS)
        for first in range(0, EVENTS, 1000):
            some = np.empty(1000, dtype=object)
            for k in range(1000):
                some[k] = rng.random(lengths[first + k], "f4")
            events[first : first + 1000] = some
        file["row"] = rng.random((int(lengths.sum()) // MEAN_ITEMS, MEAN_ITEMS), "f4")


def decoding(path):
    """Give what decodes all images with as many threads, from memory to memory."""
    with h5py.File(path) as file:
        encoded = [value.tobytes() for value in file["image"][:]]

    def work(first):
        out = np.empty((64, 224, 224, 3), "u1")
        for k in range(first, len(encoded), cases.THREADS):
            imagecodecs.jpeg8_decode(encoded[k], out=out[k // cases.THREADS % 64])

    def run():
        threads = [threading.Thread(target=work, args=(k,)) for k in range(cases.THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    return run


def epochs(loader, count=1):
    def run():
        for _ in range(count):
            for _ in loader:
                pass

    return run


def test_jpeg_images_come_as_fast_as_the_same_threads_decode_them(benchmark, bench_folder):
    path = bench_folder / "variable-length-images.h5"
    if not path.exists():
        write_images(path)
    fields = {"image": Field("image", decode="jpeg"), "label": "label"}
    least, pairs = decoding(path), []
    for _ in range(ROUNDS):
        # Closed before the other side is timed: the next epoch would be read ahead meanwhile.
        with H5StreamLoader(path, 64, shuffle=True, fields=fields, num_workers=cases.THREADS) as loader:
            ours = epochs(loader, EPOCHS)
            epochs(loader, 2)()  # in the second, what is read ahead of the third has its memory touched
            mine = cases.seconds_of(ours)
        pairs.append((mine / EPOCHS, cases.seconds_of(least)))
    benchmark.pedantic(least, rounds=1)
    of_limit = statistics.median(theirs / mine for mine, theirs in pairs)
    rate = IMAGES / statistics.median(mine for mine, _ in pairs)
    benchmark.extra_info.update(images_per_s=rate, of_decoding=of_limit)
    print(f"\njpeg: {rate:,.0f} images/s, {of_limit:.2f} of what the threads decode")
    assert of_limit >= OF_DECODING


def test_events_beside_plain_rows(benchmark, bench_folder):
    path = bench_folder / "variable-length-events.h5"
    if not path.exists():
        write_events(path)
    with h5py.File(path) as file:
        nbytes = file["row"].size * 4
    common = {"shuffle": True, "num_workers": cases.THREADS}
    with (
        H5StreamLoader(path, 256, fields=Field("event", ragged="packed"), **common) as events,
        H5StreamLoader(path, 256, fields="event", **common) as lists,
        H5StreamLoader(path, 256, fields="row", **common) as rows,
    ):
        runs = [epochs(each, EPOCHS) for each in (events, lists, rows)]
        for run in runs:
            run()
        rounds = [[cases.seconds_of(run) for run in runs] for _ in range(ROUNDS)]
        benchmark.pedantic(runs[0], rounds=1)
    packed, as_lists, plain = (statistics.median(each[k] for each in rounds) / EPOCHS for k in range(3))
    of_plain = statistics.median(each[2] / each[0] for each in rounds)
    benchmark.extra_info.update(
        gb_per_s=nbytes / packed / 1e9, lists_gb_per_s=nbytes / as_lists / 1e9, of_plain_rows=of_plain
    )
    print(
        f"\nevents: {nbytes / packed / 1e9:.2f} GB/s packed, {nbytes / as_lists / 1e9:.2f} as lists, "
        f"{nbytes / plain / 1e9:.2f} as plain rows; packed has {of_plain:.2f} of these"
    )
    assert of_plain >= OF_PLAIN_ROWS
