"""A small file of each layout of public programs that is unlike the others, and what the program reads of it.

`LAYOUTS` has for each program what its files hold, and a text: the kind of samples (after an @ the axis that they lie
along), how many there are, and the fields. Files are dicts of paths; a shape stands for numbers, and `path@name` is an
attribute. Where a list beside the files chooses samples, or cuts them, what counts is what the files say alone.
`GALLERY` has such texts of programs whose files examples/gallery writes.
"""

import h5py
import imagecodecs
import numpy as np

RNG = np.random.default_rng(0)
IMAGES = [imagecodecs.jpeg_encode(np.full((24, 16 + k % 3 * 8, 3), 9 * k, "u1")) for k in range(12)]


def u(*shape):
    return RNG.integers(0, 255, shape, "u1")


def i(*shape, most=9):
    return RNG.integers(0, most, shape)


def texts(count, form="name {}"):
    return [form.format(k).encode() for k in range(count)]


def each(form, count, held):
    """Give what so many groups hold, or datasets: "" is the thing itself; a function is of the number of each."""
    joined = {name: name if name[:1] in ("", "@") else f"/{name}" for name in held}
    return {
        f"{form.format(k)}{joined[name]}": value(k) if callable(value) else value
        for k in range(count)
        for name, value in held.items()
    }


def files(form, count, held):
    """Give so many files of a name; a function gives what the one of a number holds."""
    return {form.format(k): held(k) if callable(held) else held for k in range(count)}


def chunked(*shape, chunks, dtype="f4"):
    return {"shape": shape, "chunks": chunks, "dtype": dtype}


def jpegs(count):
    some = [IMAGES[k % 12] for k in range(count)]
    return np.stack([np.frombuffer(one.ljust(max(map(len, some)), b"\0"), "u1") for one in some])


def sparse(rows, columns, kind="csr"):
    lines, most = (rows, columns) if kind == "csr" else (columns, rows)
    counts = RNG.integers(1, 6, lines)
    indices = np.concatenate([np.sort(RNG.permutation(most)[:n]) for n in counts])
    held = {"X/data": RNG.random(counts.sum()).astype("f4"), "X/indices": indices}
    held |= {"X/indptr": np.append(0, counts.cumsum()), "X@encoding-type": f"{kind}_matrix", "X@shape": [rows, columns]}
    return held


def cells(rows, genes):
    kinds = {"obs/cell_type/codes": i(rows, most=3).astype("i1"), "obs/cell_type/categories": texts(3)}
    kinds |= {"obs/cell_type@encoding-type": "categorical"}
    return sparse(rows, genes) | kinds | {"var/_index": [f"g{gene}".encode() for gene in RNG.permutation(genes)]}


def steps(k):
    return 30 + 7 * k % 11


def pixels(k):
    return 20 + 3 * k % 7, 30 + k % 5


HITS = RNG.integers(1, 9, 40)
ENDS = HITS.cumsum()
SPLIT = np.array([(b"train", b"features", 0, 80), (b"test", b"features", 80, 100)], "S8, S8, i8, i8")
FRAMES = {"": lambda k: u(20 + k % 7, 12, 16, 3)}
PLUME = {f"wind_{w}/source_{s}/{name}_{t}": (size, size) for w in range(2) for s in range(3) for t in range(6)
         for name, size in (("LR", 8), ("HR", 32))}  # fmt: skip
PLUME |= {f"wind_{w}/source_{s}/{name}": (size,) for w in range(2) for s in range(3)
          for name, size in (("source_info", 3), ("velocity", 2))}  # fmt: skip

TRACE = {"": (600, 3), "@snr_db": np.ones(3), "@trace_category": "earthquake_local"}
TRACE |= {f"@{phase}_sample": 400.0 for phase in ("p_arrival", "s_arrival", "coda_end")}
CONFORMERS = {"coordinates": lambda k: (20 + 3 * k, 3 + 2 * k, 3), "energies": lambda k: (20 + 3 * k,)}
CONFORMERS |= {"species": lambda k: i(3 + 2 * k)}
SONG = {"dac_rvq": lambda k: i(9, 560 + 4 * k), "clap": (512,), "metadata/genre": "jazz"}
WATER = {"event_hits_index": ENDS - HITS, "hit_pmt": i(ENDS[-1]), "hit_time": (ENDS[-1],), "hit_charge": (ENDS[-1],)}
CAPTIONS = {"labels": i(ENDS[-1], 16), "label_start_ix": ENDS - HITS + 1, "label_end_ix": ENDS}
BOXES = {"boxes_1024": i(ENDS[-1], 4), "labels": i(ENDS[-1], 1)}
BOXES |= {"img_to_first_box": ENDS - HITS, "img_to_last_box": ENDS - 1, "split": i(40, most=2)}
RELATIONS = {"predicates": i(99, 1), "relationships": i(99, 2)}
RELATIONS |= {f"img_to_{end}_rel": np.where(np.arange(40) < 33, np.arange(40) * 3 + more, -1)
              for end, more in (("first", 0), ("last", 2))}  # fmt: skip
DEMO = {"actions": lambda k: (steps(k), 7), "rewards": lambda k: (steps(k),), "dones": lambda k: i(steps(k), most=2)}
DEMO |= {f"{when}/robot0_eef_pos": lambda k: (steps(k), 3) for when in ("obs", "next_obs")}
DEMO |= {"obs/agentview_image": lambda k: u(steps(k), 16, 16, 3), "@num_samples": steps}


def scan(k):
    known = {"ismrmrd_header": "<xml/>", "@acquisition": "CORPD_FBK", "@max": 0.5 + k, "@norm": 9.0, "@patient_id": "a"}
    return {"kspace": np.ones((5 + k, 16, 20 + 2 * k), "c8"), "reconstruction_rss": (5 + k, 12, 12)} | known


EMBEDDED = {"embeddings": (200, 64), "@mean": np.zeros(64, "f4"), "@std": np.ones(64, "f4")}
PARTED = {"train/data": (80, 12), "train/label": i(80), "test/data": (20, 12), "test/label": i(20)}
SPOKEN = {"mel": (60, 100, 40), "f0": (60, 100), "mel_lengths": 40 + i(60, most=60)}
SCANNED = {"images": u(100, 16, 16, 3), "labels": i(100), "is_train": i(100, most=2).astype(bool)}
SPOTS = {"img": u(60, 32, 32, 3), "barcode": texts(60), "coords": i(60, 2)}
BRAIN = {"eeg": lambda k: (16, 2000 + 300 * k), "@rsFreq": 200, "@chOrder": texts(16)}

LAYOUTS = {
    "burning-phoenix/go_morphology": (EMBEDDED, "rows 200 embeddings"),
    "cmw1017/ALMLDL": (PARTED, "rows 80 train/data train/label"),
    "EMPIRIC2/EMPIRIC_TC": ({"train_genesis": (80, 8, 8, 4), "test_genesis": (20, 8, 8, 4)}, "rows 80 train_genesis"),
    "mila-iqia/fuel": (
        {"features": u(100, 1, 12, 12), "targets": u(100, 1), "@split": SPLIT},
        "rows 100 features targets",
    ),
    "ssneakyrat/project-MLSSR": (SPOKEN, "rows 60 mel f0 mel_lengths"),
    "wangbo00129/largedataloader": (
        files("slide_{}.h5", 3, lambda k: {"patches": u(30 + k, 16, 16, 3), "@total_num": 30 + k}),
        "rows 93 patches",
    ),
    "facebookresearch/fastMRI": (files("scan{}.h5", 3, scan), "rows 18 kspace reconstruction_rss @max"),
    "funkey/gunpowder": (
        {
            "volumes/raw": chunked(30, 96, 96, chunks=(8, 32, 32), dtype="u1"),
            "volumes/labels/neuron_ids": chunked(30, 48, 48, chunks=(8, 32, 32), dtype="u8"),
            "volumes/raw@resolution": [40, 4, 4],
            "volumes/labels/neuron_ids@resolution": [40, 8, 8],
        },
        "boxes ? volumes/raw volumes/labels/neuron_ids",
    ),
    "rknaebel/landslide": (
        {"raster": (4, 200, 300), "mask": u(200, 300), "pos": i(40, 2, most=180), "neg": i(90, 2, most=180)},
        "boxes ? raster mask",
    ),
    "CeadeS/PyTorchH5Dataset": (each("samples/{}", 6, {"": lambda k: u(20 + k, 3, *pixels(k))}), "rows 135 ."),
    "scverse/anndata": (cells(40, 30), "sparse 40 X obs/cell_type"),
    "laminlabs/lamindb": (files("cells_{}.h5ad", 2, lambda k: cells(40, 30)), "sparse 80 X obs/cell_type var/_index"),
    "gdewael/h5torch": ({"central": (100, 30), "0/labels": i(100), "1/features": (30, 8)}, "rows 100 central 0/labels"),
    "gravesreid/blastformer": (
        files("step_{:03}.h5", 12, each("0", 1, dict.fromkeys("rpTuvwEM", (8, 8, 8)))),
        "objects 12 0/r 0/p 0/T 0/u 0/v 0/w 0/E 0/M",
    ),
    "nasaharvest/cropharvest": (files("{}_togo.h5", 30, {"array": (12, 18)}), "objects 30 array"),
    "yunzed/FSRCNN-pytorch": (
        each("lr{}", 9, {"": (16, 1, 8, 8)}) | each("hr{}", 9, {"": (16, 1, 24, 24)}),
        "rows 144 lr{} hr{}",
    ),
    "ShutongJIN/dino": (each("video_{}/rgb/frames", 4, FRAMES), "rows 86 frames"),
    "aiqm/torchani": (each("C{0}H{0}", 6, CONFORMERS), "rows 165 coordinates energies species"),
    "seisbench/seisbench": (each("data/bucket{}", 4, {"": lambda k: (12, 3, 600 + 40 * k)}), "rows 48 ."),
    "GuangyanS/path-to-scan": (SCANNED, "rows 100 images labels"),
    "Dylan0803/swin-ir_-gdm": (PLUME, "objects 36 LR_ HR_ source_info velocity"),
    "Iseeu233/deepAMPNet": (each("AMP_{}", 20, {"": lambda k: (9 + k, 64)}), "objects 20 ."),
    "Ohyeon5/SQM_discreteness": (
        each("video_{}", 12, {"images": u(13, 12, 16, 3), "label": lambda k: k % 2, "label_id": "left"}),
        "objects 12 images label label_id",
    ),
    "SaoYan/DnCNN-PyTorch": (each("{}", 40, {"": (1, 20, 20)}), "objects 40 ."),
    "smousavi05/EQTransformer": (
        each("data/B{:03}.TA_EV", 20, TRACE),
        "objects 20 . @p_arrival_sample @s_arrival_sample @coda_end_sample @snr_db",
    ),
    "IMCC-DFDC/HDF5-DATASET": (each("dfdc_{}", 12, {**FRAMES, "@len": lambda k: 20 + k % 7}), "windows ? ."),
    "navbrainlab/Brain-decoding-": (each("trial_{}", 20, {"": lambda k: (16, 900 + 7 * k)}), "windows@1 ? ."),
    "lucainiaoge/discodiff": (files("song_{}.h5", 3, each("chunk_{}", 4, SONG)), "windows@1 ? dac_rvq clap"),
    "john-hewitt/structural-probes": (each("{}", 20, {"": lambda k: (3, 4 + k, 64)}), "objects 20 ."),
    "vturrisi/solo-learn": (
        {f"n{k % 3:08}/{k}.JPEG": np.frombuffer(IMAGES[k % 12], "u1") for k in range(30)},
        "objects 30 .",
    ),
    "catskillsresearch/broad-3-catskills": (SPOTS, "rows 60 img barcode coords"),
    "WatChMaL/WatChMaL": (
        WATER | {"labels": i(40), "root_files": texts(40)},
        "ragged 40 hit_pmt hit_time hit_charge labels",
    ),
    "ruotianluo/ImageCaptioning.pytorch": (CAPTIONS | {"label_length": i(ENDS[-1], most=16)}, "ragged 40 labels"),
    "rowanz/neural-motifs": (BOXES | RELATIONS, "ragged 40 boxes_1024 labels predicates relationships"),
    "935963004/LaBraM": (each("subject_{}", 3, BRAIN), "windows@1 ? eeg"),
    "ARISE-Initiative/robomimic": (
        each("data/demo_{}", 5, DEMO) | {"mask/train": texts(4, "demo_{}")},
        "windows ? actions obs/agentview_image obs/robot0_eef_pos rewards",
    ),
    "camlab-ethz/poseidon": ({"velocity": (6, 21, 3, 16, 16)}, "windows@1 ? velocity"),
    "NVlabs/FourCastNet": (
        {f"{year}.h5": {"fields": chunked(40, 6, 18, 36, chunks=(1, 1, 18, 36))} for year in (1979, 1980, 1981)},
        "windows ? fields",
    ),
    "amazon-science/earth-forecasting-transformer": (
        {f"SEVIR_VIL_{year}.h5": {"vil": u(6, 24, 24, 49), "id": texts(6)} for year in (2018, 2019)},
        "windows@-1 ? vil",
    ),
    "thu-ml/RoboticsDiffusionTransformer": (
        files("episode_{}.hdf5", 5, lambda k: {"observations/images/cam_high": jpegs(20 + k), "action": (20 + k, 14)}),
        "rows 110 observations/images/cam_high action",
    ),
    "pytorch/vision": ({"train_x.h5": {"x": u(60, 16, 16, 3)}, "train_y.h5": {"y": u(60, 1, 1, 1)}}, "rows 60 x y"),
}


GALLERY = {
    "Indoor3D": "rows 30 data label",
    "BertShards": "rows 60 input_ids input_mask segment_ids masked_lm_positions masked_lm_ids next_sentence_labels",
    "Salt": "rows 100 jets tracks",
    "BioFoundation": "rows 55 X y",
    "MVPBenchmark": "rows 78 incomplete_pcds complete_pcds labels",
    "ClevrIep": "rows 60 questions programs answers features",
    "PaSST": "rows 20 mp3 target audio_name",
    "CheapReco": "rows 40 voxels_x voxels_y voxels_z energies",
    "TorchEM": "boxes ? raw labels",
    "Ssl4Mis": "objects 8 image label",
    "Landslide4Sense": "objects 12 img mask",
    "PathML": "objects 10 array masks/nuclei labels@tumour",
    "NuGraph": "objects 30 x y edges",
    "NeuralPredictors": "objects 12 videos/{} responses/{}",
    "Mace": "objects 30 atomic_numbers positions properties/energy properties/forces cell",
    "Wmca": "objects 20 array {}/array",
    "MixData": "windows ? mix s1 s2",
    "ManiSkill": "windows ? obs actions",
    "MultiplePhysicsPretraining": "windows@1 ? velocity particles",
    "Act": "windows ? observations/images/top observations/qpos action",
}


def write(folder, held):
    """Write the files of a layout, and give what a user would name of them: a file, a pattern or two."""
    given = held if all(name.endswith((".h5", ".hdf5", ".h5ad")) for name in held) else {"a.h5": held}
    for name, inside in given.items():
        (folder / name).parent.mkdir(exist_ok=True)
        with h5py.File(folder / name, "w") as file:
            for path, value in inside.items():
                _put(file, path, value)
    return [*given]


def _put(file, path, value):
    path, is_attribute, name = path.partition("@")
    path = path.rstrip("/")
    if is_attribute:
        (file.require_group(path) if path not in file and path else file[path or "/"]).attrs[name] = value
    elif isinstance(value, tuple):
        file[path] = np.arange(np.prod(value), dtype="f4").reshape(value)
    elif isinstance(value, dict):
        file.create_dataset(path, **value)
    else:
        file[path] = value
