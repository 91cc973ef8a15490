"""A dataset, a group or a file for each sample."""

import h5py
import numpy as np

from examples.gallery.program import GZIP, Program, as_lists, measured, pixels
from h5stream import Field, H5StreamLoader, Objects, Rows, Sequences, Values


class EQTransformer(Program):
    """A trace of an earthquake, of a list of them, with what its attributes say."""

    repository, subject, layout = "smousavi05/EQTransformer", "seismology", "a dataset for each trace, with attributes"
    size = 40

    @staticmethod
    def make(folder, size=1):
        rng, names = np.random.default_rng(0), [f"B{k:05}.TA_EV" for k in range(25 * size)]
        with h5py.File(folder / "stead.hdf5", "w") as file:
            for k, name in enumerate(names):
                trace = file.create_dataset(f"data/{name}", data=measured(rng, 6000, 3))
                trace.attrs["p_arrival_sample"], trace.attrs["snr_db"] = 400.0 + k, rng.random(3)
        np.save(folder / "train.npy", rng.permutation(names)[: 20 * size])

    def __init__(self, folder):
        self.path, self.names = folder / "stead.hdf5", np.load(folder / "train.npy")

    def __len__(self):
        return len(self.names)

    def __getitem__(self, index):
        return self.__getitems__([index])[0]

    def __getitems__(self, indices):
        with h5py.File(self.path) as file:
            traces = [file[f"data/{self.names[k]}"] for k in indices]
            return [{"x": t[:], "p": t.attrs["p_arrival_sample"], "snr": t.attrs["snr_db"]} for t in traces]

    @staticmethod
    def ours(folder, **options):
        names = np.load(folder / "train.npy")
        return H5StreamLoader(
            folder / "stead.hdf5",
            samples=Objects([f"data/{name}" for name in names]),
            fields={"x": ".", "p": "@p_arrival_sample", "snr": "@snr_db"},
            **options,
        )


class CNOBenchmarks(Program):
    """The input and the output of a simulation."""

    repository, subject, layout = "camlab-ethz/ConvolutionalNeuralOperator", "physics", "a group for each simulation"
    batch, size = 32, 60

    @staticmethod
    def make(folder, size=1):
        rng = np.random.default_rng(0)
        with h5py.File(folder / "poisson.h5", "w") as file:
            for k in range(15 * size):
                for name in ("input", "output"):
                    file[f"sample_{k}/{name}"] = measured(rng, 64, 64)

    def __init__(self, folder):
        self.file = h5py.File(folder / "poisson.h5")

    def __len__(self):
        return len(self.file)

    def __getitem__(self, index):
        sample = self.file[f"sample_{index}"]
        return {"input": sample["input"][:], "output": sample["output"][:]}

    @staticmethod
    def ours(folder, **options):
        with h5py.File(folder / "poisson.h5") as file:
            samples = Objects([f"sample_{k}" for k in range(len(file))])
        fields = {"input": "input", "output": "output"}
        return H5StreamLoader(folder / "poisson.h5", samples=samples, fields=fields, **options)


class DnCNN(Program):
    """A patch of a picture."""

    repository, subject, layout = "SaoYan/DnCNN-PyTorch", "denoising", "a dataset for each patch, numbers as names"
    batch, size = 128, 250

    @staticmethod
    def make(folder, size=1):
        rng = np.random.default_rng(0)
        with h5py.File(folder / "train.h5", "w") as file:
            for k in range(40 * size):
                file[str(k)] = measured(rng, 1, 40, 40)

    def __init__(self, folder):
        self.path = folder / "train.h5"
        with h5py.File(self.path) as file:
            self.keys = sorted(file, key=int)

    def __len__(self):
        return len(self.keys)

    def __getitem__(self, index):
        with h5py.File(self.path) as file:
            return {"patch": np.array(file[self.keys[index]])}

    @staticmethod
    def ours(folder, **options):
        with h5py.File(folder / "train.h5") as file:
            samples = Objects(sorted(file, key=int))
        return H5StreamLoader(folder / "train.h5", samples=samples, fields={"patch": "."}, **options)


class MultibranchAttention(Program):
    """Seven volumes of a patient, and a label, of a list of patients."""

    repository, subject, layout = (
        "WWangSiqi/Multibranch-attention-Network",
        "medical imaging",
        "a file for each patient",
    )
    batch, size = 4, 6
    kinds = ("T1", "T2", "T1c", "FLAIR", "DWI", "ADC", "mask")

    @staticmethod
    def make(folder, size=1):
        rng = np.random.default_rng(0)
        for k in range(10 * size):
            with h5py.File(folder / f"patient_{k:03}.h5", "w") as file:
                for name in MultibranchAttention.kinds:
                    file[name] = measured(rng, 24, 64, 64)
                file["label"] = k % 2
        np.save(folder / "train.npy", rng.permutation(10 * size)[: 8 * size])

    def __init__(self, folder):
        self.folder, self.patients = folder, np.load(folder / "train.npy")

    def __len__(self):
        return len(self.patients)

    def __getitem__(self, index):
        with h5py.File(self.folder / f"patient_{self.patients[index]:03}.h5") as file:
            return {name: file[name][()] for name in (*self.kinds, "label")}

    @staticmethod
    def ours(folder, **options):
        paths = [folder / f"patient_{k:03}.h5" for k in np.load(folder / "train.npy")]
        fields = {name: name for name in (*MultibranchAttention.kinds, "label")}
        return H5StreamLoader(paths, samples=Objects("files"), fields=fields, **options)


class CropHarvest(Program):
    """A year of a place on earth, and its label, which is in memory."""

    repository, subject, layout = "nasaharvest/cropharvest", "remote sensing", "a file for each place"
    size = 40

    @staticmethod
    def make(folder, size=1):
        rng = np.random.default_rng(0)
        for k in range(30 * size):
            with h5py.File(folder / f"{k}_togo.h5", "w") as file:
                file["array"] = rng.random((12, 18))
        np.save(folder / "labels.npy", rng.integers(0, 2, 30 * size))

    def __init__(self, folder):
        self.folder, self.labels = folder, np.load(folder / "labels.npy")

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        with h5py.File(self.folder / f"{index}_togo.h5") as file:
            return {"x": file["array"][:], "y": self.labels[index]}

    @staticmethod
    def ours(folder, **options):
        labels = np.load(folder / "labels.npy")
        paths = [folder / f"{k}_togo.h5" for k in range(len(labels))]
        fields = {"x": "array", "y": Values(labels)}
        return H5StreamLoader(paths, samples=Objects("files"), fields=fields, **options)


class Landslide4Sense(Program):
    """An image, and its mask in a file of its own."""

    repository, subject, layout = "iarai/Landslide4Sense-2022", "remote sensing", "a pair of files for each sample"
    batch, size = 32, 12

    @staticmethod
    def make(folder, size=1):
        rng = np.random.default_rng(0)
        (folder / "img").mkdir()
        (folder / "mask").mkdir()
        for k in range(12 * size):
            with h5py.File(folder / f"img/image_{k}.h5", "w") as file:
                file["img"] = rng.random((128, 128, 14))
            with h5py.File(folder / f"mask/mask_{k}.h5", "w") as file:
                file["mask"] = rng.integers(0, 2, (128, 128), "u1")

    def __init__(self, folder):
        self.folder, self.count = folder, len(list(folder.glob("img/*.h5")))

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        with h5py.File(self.folder / f"img/image_{index}.h5") as images:
            image = images["img"][:]
        with h5py.File(self.folder / f"mask/mask_{index}.h5") as masks:
            return {"image": image, "mask": masks["mask"][:]}

    @staticmethod
    def ours(folder, **options):
        numbers = range(len(list(folder.glob("img/*.h5"))))
        masks = [folder / f"mask/mask_{k}.h5" for k in numbers]
        return H5StreamLoader(
            [folder / f"img/image_{k}.h5" for k in numbers],
            samples=Objects("files"),
            fields={"image": "img", "mask": Field("mask", file=masks)},
            **options,
        )


class ProteinLocalization(Program):
    """The embedding of a protein, of as many rows as it is long, and where the protein is found."""

    repository, subject, layout = "HannesStark/protein-localization", "proteins", "a dataset for each protein"
    batch, size, collate = 32, 10, staticmethod(as_lists)

    @staticmethod
    def make(folder, size=1):
        rng, ids = np.random.default_rng(0), []
        with h5py.File(folder / "embeddings.h5", "w") as file:
            for k in range(20 * size):
                ids.append(f"P{k * 7919 % 100_000:05}")
                file[ids[-1]] = measured(rng, int(rng.integers(40, 300)), 1024)
        np.savez(folder / "annotations.npz", ids=rng.permutation(ids), labels=rng.integers(0, 10, len(ids)))

    def __init__(self, folder):
        self.file, table = h5py.File(folder / "embeddings.h5"), np.load(folder / "annotations.npz")
        self.ids, self.labels = table["ids"], table["labels"]

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        return {"embedding": self.file[self.ids[index]][:], "label": self.labels[index]}

    @staticmethod
    def ours(folder, **options):
        table = np.load(folder / "annotations.npz")
        return H5StreamLoader(
            folder / "embeddings.h5",
            samples=Objects(table["ids"].tolist()),
            fields={"embedding": Field(".", ragged="list"), "label": Values(table["labels"])},
            **options,
        )


class Mace(Program):
    """A molecule: its atoms, their positions and forces, and its energy."""

    repository, subject, layout = "ACEsuit/mace", "chemistry", "a group for each molecule, in groups"
    batch, size, collate = 32, 20, staticmethod(as_lists)

    @staticmethod
    def make(folder, size=1):
        rng = np.random.default_rng(0)
        with h5py.File(folder / "train.h5", "w") as file:
            for k in range(30 * size):
                atoms, config = int(rng.integers(3, 24)), file.create_group(f"config_batch_{k // 10}/config_{k % 10}")
                config["atomic_numbers"], config["positions"] = rng.integers(1, 9, atoms), rng.random((atoms, 3))
                config["properties/energy"], config["properties/forces"] = rng.random(), rng.random((atoms, 3))
                config["cell"] = np.eye(3)

    def __init__(self, folder):
        self.file = h5py.File(folder / "train.h5")
        self.count = sum(map(len, self.file.values()))

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        config = self.file[f"config_batch_{index // 10}"][f"config_{index % 10}"]
        properties = config["properties"]
        return {
            "numbers": config["atomic_numbers"][()],
            "positions": config["positions"][()],
            "cell": config["cell"][()],
            "energy": properties["energy"][()],
            "forces": properties["forces"][()],
        }

    @staticmethod
    def ours(folder, **options):
        ragged = {"numbers": "atomic_numbers", "positions": "positions", "forces": "properties/forces"}
        fields = {name: Field(path, ragged="packed") for name, path in ragged.items()}
        return H5StreamLoader(
            folder / "train.h5",
            samples=Objects("config_batch_*/config_*"),
            fields={**fields, "cell": "cell", "energy": "properties/energy"},
            **options,
        )


class NeuralPredictors(Program):
    """A video, and the responses of neurons to it, each in a group of all of its kind."""

    repository, subject, layout = "sinzlab/neuralpredictors", "neuroscience", "groups of equally named datasets"
    batch, size = 8, 10

    @staticmethod
    def make(folder, size=1):
        rng = np.random.default_rng(0)
        with h5py.File(folder / "movies.h5", "w") as file:
            for k in range(12 * size):
                file[f"videos/{k}"], file[f"responses/{k}"] = pixels(rng, 60, 36, 64), measured(rng, 60, 500)
            file["tiers"] = [b"train" if k % 4 else b"test" for k in range(12 * size)]

    def __init__(self, folder):
        self.file = h5py.File(folder / "movies.h5")
        self.names = [str(k) for k, tier in enumerate(self.file["tiers"]) if tier == b"train"]

    def __len__(self):
        return len(self.names)

    def __getitem__(self, index):
        return {group: self.file[group][self.names[index]][()] for group in ("videos", "responses")}

    @staticmethod
    def ours(folder, **options):
        train = [str(k) for k, tier in enumerate(h5py.File(folder / "movies.h5")["tiers"]) if tier == b"train"]
        fields = {group: Field(f"{group}/{{}}", lookup=train) for group in ("videos", "responses")}
        return H5StreamLoader(folder / "movies.h5", fields=fields, **options)


class PathML(Program):
    """A tile of a slide, its mask, and its label, which is an attribute."""

    repository, subject, layout = "Dana-Farber-AIOS/pathml", "pathology", "a group for each tile, with attributes"
    batch, size = 16, 15

    @staticmethod
    def make(folder, size=1):
        rng = np.random.default_rng(0)
        with h5py.File(folder / "slide.h5path", "w") as file:
            for k in range(10 * size):
                tile = file.create_group(f"tiles/({k // 10 * 256}, {k % 10 * 256})")
                tile.create_dataset("array", data=pixels(rng, 256, 256, 3), chunks=True, **GZIP)
                tile.create_dataset("masks/nuclei", data=rng.integers(0, 2, (256, 256), "u1"), chunks=True, **GZIP)
                tile.create_group("labels").attrs["tumour"] = k % 3

    def __init__(self, folder):
        self.path = folder / "slide.h5path"
        with h5py.File(self.path) as file:
            self.tiles = list(file["tiles"])

    def __len__(self):
        return len(self.tiles)

    def __getitem__(self, index):
        with h5py.File(self.path) as file:
            tile = file["tiles"][self.tiles[index]]
            return {
                "image": tile["array"][:],
                "mask": tile["masks/nuclei"][:],
                "label": tile["labels"].attrs["tumour"],
            }

    @staticmethod
    def ours(folder, **options):
        tiles = [f"tiles/{name}" for name in h5py.File(folder / "slide.h5path")["tiles"]]
        fields = {"image": "array", "mask": "masks/nuclei", "label": "labels@tumour"}
        return H5StreamLoader(folder / "slide.h5path", samples=Objects(tiles), fields=fields, **options)


class NuGraph(Program):
    """A graph of a neutrino's event: nodes, edges and labels, of a list of names in the file."""

    repository, subject, layout = "exatrkx/NuGraph", "particle physics", "a group for each event"
    batch, size, collate = 32, 20, staticmethod(as_lists)

    @staticmethod
    def make(folder, size=1):
        rng, names = np.random.default_rng(0), []
        with h5py.File(folder / "events.gnn.h5", "w") as file:
            for k in range(30 * size):
                names.append(f"r{1 + k // 7}_sr{k % 5}_evt{k}")
                nodes, edges = rng.integers(5, 90, 2)
                graph = file.create_group(f"dataset/{names[-1]}")
                graph["x"], graph["y"] = measured(rng, nodes, 4), rng.integers(0, 5, nodes)
                graph["edges"] = rng.integers(0, nodes, (edges, 2))
            file["samples/train"] = [name.encode() for name in rng.permutation(names)[: 20 * size]]

    def __init__(self, folder):
        self.file = h5py.File(folder / "events.gnn.h5")
        self.names = self.file["samples/train"].asstr()[:]

    def __len__(self):
        return len(self.names)

    def __getitem__(self, index):
        graph = self.file[f"dataset/{self.names[index]}"]
        return {name: graph[name][()] for name in ("x", "y", "edges")}

    @staticmethod
    def ours(folder, **options):
        train = h5py.File(folder / "events.gnn.h5")["samples/train"].asstr()[:]
        return H5StreamLoader(
            folder / "events.gnn.h5",
            samples=Objects([f"dataset/{name}" for name in train]),
            fields={name: Field(name, ragged="packed") for name in ("x", "y", "edges")},
            **options,
        )


class MixData(Program):
    """A random second of a mixture and of both of its sources."""

    repository, subject, layout = "hoanganh0106/mixdata", "audio", "a group for each mixture"
    batch, size, drawn = 16, 10, True

    @staticmethod
    def make(folder, size=1):
        rng = np.random.default_rng(0)
        with h5py.File(folder / "mixtures.h5", "w") as file:
            for k in range(12 * size):
                for name in ("mix", "s1", "s2"):
                    file[f"mixtures/{k}/{name}"] = measured(rng, 8040 + k % 5 * 20)

    def __init__(self, folder):
        self.file = h5py.File(folder / "mixtures.h5")

    def __len__(self):
        return len(self.file["mixtures"])

    def __getitem__(self, index):
        return self.read(index, np.random.randint(len(self.file[f"mixtures/{index}/mix"]) - 8000 + 1))

    def read(self, index, start):
        return {name: one[start : start + 8000] for name, one in self.file[f"mixtures/{index}"].items()}

    def possible(self):
        return (
            self.read(k, start)
            for k in range(len(self))
            for start in range(len(self.file[f"mixtures/{k}/mix"]) - 8000 + 1)
        )

    @staticmethod
    def ours(folder, **options):
        samples = Sequences(8000, of="mixtures/*", starts="random")
        fields = {name: name for name in ("mix", "s1", "s2")}
        return H5StreamLoader(folder / "mixtures.h5", samples=samples, fields=fields, **options)


class VideoClips(Program):
    """Eight frames of each video, every second one, from a random one on."""

    repository, subject, layout = "IMCC-DFDC/HDF5-DATASET", "video", "a dataset for each video"
    batch, size, drawn = 8, 8, True

    @staticmethod
    def make(folder, size=1):
        rng = np.random.default_rng(0)
        with h5py.File(folder / "videos.h5", "w") as file:
            for k in range(8 * size):
                frames = int(rng.integers(20, 40))
                video = file.create_dataset(f"video_{k}/frames", data=pixels(rng, frames, 112, 112, 3))
                video.attrs["len"] = frames

    def __init__(self, folder):
        self.file = h5py.File(folder / "videos.h5")

    def __len__(self):
        return len(self.file)

    def __getitem__(self, index):
        return self.read(index, np.random.randint(self.file[f"video_{index}/frames"].attrs["len"] - 14))

    def read(self, index, start):
        return {"clip": self.file[f"video_{index}/frames"][start : start + 16][:15:2]}

    def possible(self):
        return (self.read(k, s) for k in range(len(self)) for s in range(len(self.file[f"video_{k}/frames"]) - 14))

    @staticmethod
    def ours(folder, **options):
        samples = Sequences(of="*", starts="random")
        fields = {"clip": Field("frames", take=range(0, 16, 2))}
        return H5StreamLoader(folder / "videos.h5", samples=samples, fields=fields, **options)


class DiscoDiff(Program):
    """A random stretch along the second axis of each song's codes."""

    repository, subject, layout = "lucainiaoge/discodiff", "music", "a group for each song, codes x time"
    batch, size, drawn = 16, 20, True

    @staticmethod
    def make(folder, size=1):
        rng = np.random.default_rng(0)
        with h5py.File(folder / "songs.h5", "w") as file:
            for k in range(12 * size):
                file[f"song_{k}/dac_rvq"] = rng.integers(0, 1024, (9, 560 + k % 12 * 4))

    def __init__(self, folder):
        self.file = h5py.File(folder / "songs.h5")

    def __len__(self):
        return len(self.file)

    def __getitem__(self, index):
        return self.read(index, np.random.randint(self.file[f"song_{index}/dac_rvq"].shape[1] - 511))

    def read(self, index, start):
        return {"codes": self.file[f"song_{index}/dac_rvq"][:, start : start + 512]}

    def possible(self):
        widths = [self.file[f"song_{k}/dac_rvq"].shape[1] for k in range(len(self))]
        return (self.read(k, start) for k, width in enumerate(widths) for start in range(width - 511))

    @staticmethod
    def ours(folder, **options):
        samples = Sequences(512, of="*", axis=1, starts="random")
        return H5StreamLoader(folder / "songs.h5", samples=samples, fields={"codes": "dac_rvq"}, **options)


class Wmca(Program):
    """A face in two spectra, each in a file of its own, by the names that both files have."""

    repository, subject, layout = "Speedarion/CompressedFaceAntiSpoofing", "faces", "equally named groups of two files"
    batch, size = 32, 20

    @staticmethod
    def make(folder, size=1):
        rng = np.random.default_rng(0)
        for kind, (first, last) in {"colour": (0, 22 * size), "infrared": (2, 24 * size)}.items():
            with h5py.File(folder / f"{kind}.h5", "w") as file:
                for k in range(first, last):
                    file[f"face_{k:05}/array"] = pixels(rng, 3 if kind == "colour" else 1, 128, 128)

    def __init__(self, folder):
        self.colour, self.infrared = h5py.File(folder / "colour.h5"), h5py.File(folder / "infrared.h5")
        self.keys = sorted(set(self.colour) & set(self.infrared))

    def __len__(self):
        return len(self.keys)

    def __getitem__(self, index):
        key = self.keys[index]
        return {"colour": self.colour[key]["array"][:], "infrared": self.infrared[key]["array"][:]}

    @staticmethod
    def ours(folder, **options):
        keys = sorted(set(h5py.File(folder / "colour.h5")) & set(h5py.File(folder / "infrared.h5")))
        infrared = Field("{}/array", file=folder / "infrared.h5", lookup=keys)
        return H5StreamLoader(
            folder / "colour.h5", samples=Objects(keys), fields={"colour": "array", "infrared": infrared}, **options
        )


class Ssl4Mis(Program):
    """A slice of a heart and its labels, of a list of slices, each of a height and a width of its own."""

    repository, subject, layout = "HiLab-git/SSL4MIS", "medical imaging", "a file for each slice, of unlike shapes"
    batch, size, collate = 24, 30, staticmethod(as_lists)

    @staticmethod
    def make(folder, size=1):
        rng = np.random.default_rng(0)
        (folder / "slices").mkdir()
        for k in range(8 * size):
            shape = (int(rng.integers(150, 260)), int(rng.integers(150, 260)))
            with h5py.File(folder / f"slices/patient_{k:04}.h5", "w") as file:
                file.create_dataset("image", data=measured(rng, *shape), **GZIP)
                file.create_dataset("label", data=rng.integers(0, 4, shape, "u1"), **GZIP)
        np.save(folder / "train.npy", rng.permutation(8 * size)[: 6 * size])

    def __init__(self, folder):
        self.folder, self.cases = folder, np.load(folder / "train.npy")

    def __len__(self):
        return len(self.cases)

    def __getitem__(self, index):
        with h5py.File(self.folder / f"slices/patient_{self.cases[index]:04}.h5") as file:
            return {"image": file["image"][:], "label": file["label"][:]}

    @staticmethod
    def ours(folder, **options):
        return H5StreamLoader(
            [folder / f"slices/patient_{k:04}.h5" for k in np.load(folder / "train.npy")],
            samples=Objects("files"),
            fields={name: Field(name, ragged="arrays") for name in ("image", "label")},
            **options,
        )


class StructuralProbes(Program):
    """One layer's embeddings of the words of a sentence."""

    repository, subject, layout = "john-hewitt/structural-probes", "language", "layers x words for each sentence"
    batch, size, collate = 20, 40, staticmethod(as_lists)

    @staticmethod
    def make(folder, size=1):
        rng = np.random.default_rng(0)
        with h5py.File(folder / "elmo.hdf5", "w") as file:
            for k in range(15 * size):
                file[str(k)] = measured(rng, 3, int(rng.integers(4, 40)), 256)

    def __init__(self, folder):
        self.file = h5py.File(folder / "elmo.hdf5")

    def __len__(self):
        return len(self.file)

    def __getitem__(self, index):
        return {"embeddings": self.file[str(index)][2]}

    @staticmethod
    def ours(folder, **options):
        with h5py.File(folder / "elmo.hdf5") as file:
            samples = Objects([str(k) for k in range(len(file))])
        fields = {"embeddings": Field(".", columns=(2, ...), ragged="arrays")}
        return H5StreamLoader(folder / "elmo.hdf5", samples=samples, fields=fields, **options)


class TorchAni(Program):
    """A conformer: the positions of its atoms, and its energy. Each group has molecules of another number of atoms."""

    repository, subject, layout = "aiqm/torchani", "chemistry", "a group for each formula, conformers x atoms"
    batch, size, collate = 256, 60, staticmethod(as_lists)

    @staticmethod
    def make(folder, size=1):
        rng = np.random.default_rng(0)
        with h5py.File(folder / "ani.h5", "w") as file:
            for k in range(8):
                count, atoms, group = int(rng.integers(20, 60)) * size, 3 + 2 * k, file.create_group(f"C{k}H{2 + k}")
                group.create_dataset("coordinates", data=measured(rng, count, atoms, 3), **GZIP)
                group.create_dataset("energies", data=rng.random(count), **GZIP)

    def __init__(self, folder):
        self.file = h5py.File(folder / "ani.h5")
        self.rows = [(name, k) for name, group in self.file.items() for k in range(len(group["energies"]))]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        name, row = self.rows[index]
        group = self.file[name]
        return {"coordinates": group["coordinates"][row], "energy": group["energies"][row]}

    @staticmethod
    def ours(folder, **options):
        fields = {"coordinates": Field("coordinates", ragged="arrays"), "energy": "energies"}
        return H5StreamLoader(folder / "ani.h5", samples=Rows(of="*"), fields=fields, **options)


class FastMri(Program):
    """A slice of a scan: k-space, of a width of its own in each file, the image, and the largest value of the scan."""

    repository, subject, layout = "facebookresearch/fastMRI", "medical imaging", "slices of a file for each scan"
    batch, size, collate = 4, 6, staticmethod(as_lists)

    @staticmethod
    def make(folder, size=1):
        rng = np.random.default_rng(0)
        for k in range(3 * size):
            slices, width = int(rng.integers(5, 9)), int(rng.integers(80, 100)) * 2
            with h5py.File(folder / f"scan{k}.h5", "w") as file:
                kspace = measured(rng, slices, 160, width) + 1j * measured(rng, slices, 160, width)
                file["kspace"], file["reconstruction_esc"] = kspace.astype("c8"), measured(rng, slices, 96, 96)
                file.attrs["max"] = k + 0.5

    def __init__(self, folder):
        self.slices = []
        for k in range(len(list(folder.glob("scan*.h5")))):
            with h5py.File(folder / f"scan{k}.h5") as file:
                self.slices += [(folder / f"scan{k}.h5", row) for row in range(len(file["kspace"]))]

    def __len__(self):
        return len(self.slices)

    def __getitem__(self, index):
        path, row = self.slices[index]
        with h5py.File(path) as file:
            return {
                "kspace": file["kspace"][row],
                "target": file["reconstruction_esc"][row],
                "max": file.attrs["max"],
            }

    @staticmethod
    def ours(folder, **options):
        paths = [folder / f"scan{k}.h5" for k in range(len(list(folder.glob("scan*.h5"))))]
        fields = {"kspace": Field("kspace", ragged="arrays"), "target": "reconstruction_esc", "max": "@max"}
        return H5StreamLoader(paths, samples=Rows(of="files"), fields=fields, **options)
