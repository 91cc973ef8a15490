"""``crop=``: a part of each sample of a ragged field, another in each epoch and the same however it is read."""

import h5py
import numpy as np
import pytest
from support.amounts import crossed

from h5stream import Between, Bounds, Crop, Field, H5StreamLoader, Lengths, Objects, Ragged

RATES = np.random.default_rng(4)
FRAMES = RATES.integers(0, 60, 50)
AUDIO = np.maximum(0, 10 * FRAMES + RATES.integers(-40, 41, 50))  # an analysis window leaves some rows at the ends


def written(path, audio=AUDIO):
    """Write frames and audio, each value its place in its sample, flat and as objects."""
    with h5py.File(path, "w") as file:
        file["label"] = np.arange(50)
        for name, counts in (("mel", FRAMES), ("audio", audio)):
            ends = np.cumsum(counts)
            file.create_dataset(name, data=np.concatenate([np.arange(n) for n in counts]), chunks=(37,))
            file[f"{name}_bounds"], file[f"{name}_counts"] = np.append(0, ends), counts
            file[f"{name}_first"], file[f"{name}_end"] = ends - counts, ends
            for k, count in enumerate(counts):
                file[f"objects/{k:02}/{name}"] = np.arange(count)
        for k in range(50):
            file[f"objects/{k:02}/label"] = k


STORED = {
    "bounds": lambda name: {"lookup": Bounds(f"{name}_bounds")},
    "lengths": lambda name: {"lookup": Lengths(f"{name}_counts")},
    "between": lambda name: {"lookup": Between(f"{name}_first", f"{name}_end")},
    "objects": lambda name: {},
}


def begins_of(batches, name, length, counts):
    """Give where the crop of each sample begins that has one, having compared its rows."""
    found = {}
    for batch in batches:
        for k, number in enumerate(batch["label"].tolist()):
            rows = batch[name].sample(k).tolist()
            assert len(rows) == min(length, counts[number])
            if rows:
                assert rows == list(range(rows[0], rows[0] + len(rows)))
                found[number] = rows[0]
    return found


OPTIONS = ({"shuffle": True}, {"shuffle": True, "window": 7}, {"num_workers": 0}, {"window": "all"})


@pytest.mark.parametrize(
    ("stored", "at", "fine", "options"),
    crossed(tuple(STORED), ("random", "center", "start"), (80, 20, 8), OPTIONS),
)
def test_crops_of_two_rates_begin_at_one_time(tmp_path, stored, at, fine, options):
    audio = AUDIO * fine // 80
    written(tmp_path / "a.h5", audio)
    crops = {"mel": Crop(8, at=at), "audio": Crop(fine, at=at)}
    fields = {name: Field(name, **STORED[stored](name), ragged=Ragged(crop=crop)) for name, crop in crops.items()}
    samples = {"samples": Objects("objects/*")} if stored == "objects" else {}
    spare, more = np.maximum(0, FRAMES - 8), np.maximum(0, audio - fine)
    most = np.minimum(spare, ((more + 1) * 8 - 1) // fine)
    seen = [set() for _ in FRAMES]
    with H5StreamLoader(tmp_path / "a.h5", 7, fields={**fields, "label": "label"}, **samples, **options) as loader:
        for _ in range(60 if at == "random" else 1):
            batches = [*loader]
            mel, heard = begins_of(batches, "mel", 8, FRAMES), begins_of(batches, "audio", fine, audio)
            assert mel.keys() & heard.keys()
            assert all(heard[k] == mel[k] * fine // 8 for k in mel.keys() & heard.keys())
            for k, begin in mel.items():
                seen[k].add(begin)
    for k, begins in enumerate(seen):
        if FRAMES[k] and at == "random":
            assert min(begins) >= 0
            assert max(begins) <= most[k]
            assert most[k] > 5 or len(begins) == most[k] + 1
        elif FRAMES[k]:
            assert begins == {most[k] // 2 if at == "center" else 0}


def test_every_place_is_as_likely_and_each_epoch_and_seed_has_others(tmp_path):
    written(tmp_path / "a.h5")
    fields = {"mel": Field("mel", lookup=Bounds("mel_bounds"), ragged=Ragged(crop=Crop(8))), "label": "label"}
    seen = []
    for seed in (0, 1):
        with H5StreamLoader(tmp_path / "a.h5", 16, fields=fields, seed=seed, shuffle=True) as loader:
            seen += [begins_of(loader, "mel", 8, FRAMES) for _ in range(30)]
    assert len({tuple(sorted(begins.items())) for begins in seen}) == 60
    longest = int(FRAMES.argmax())
    places = np.bincount([begins[longest] for begins in seen], minlength=FRAMES[longest] - 7)
    assert len(places) == FRAMES[longest] - 7
    assert places.max() < 10


def test_fields_that_have_no_time_in_common_are_each_drawn_from_all_of_their_rows(tmp_path):
    audio = np.where(np.arange(50) < 25, 10 * FRAMES + 400, 10 * FRAMES)
    written(tmp_path / "a.h5", audio)
    crops = {"mel": Crop(8), "audio": Crop(80)}
    fields = {name: Field(name, **STORED["bounds"](name), ragged=Ragged(crop=crop)) for name, crop in crops.items()}
    spare, more = np.maximum(0, FRAMES - 8), np.maximum(0, audio - 80)
    furthest = np.zeros(50, int)
    with H5StreamLoader(tmp_path / "a.h5", 7, fields={**fields, "label": "label"}) as loader:
        for _ in range(60):
            batches = [*loader]
            mel, heard = begins_of(batches, "mel", 8, FRAMES), begins_of(batches, "audio", 80, audio)
            for k, begin in mel.items():
                furthest[k] = max(furthest[k], heard[k])
                if k >= 25:
                    assert heard[k] == 10 * begin
                    continue
                low, high = (np.array([heard[k], heard[k] + 1]) / (more[k] + 1)).tolist()
                assert begin / (spare[k] + 1) < high
                assert low < (begin + 1) / (spare[k] + 1)
    assert (furthest[:25] > 0.8 * more[:25])[FRAMES[:25] > 0].all()
