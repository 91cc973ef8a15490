"""Stretches of longer recordings: demonstrations, buffers, years of weather, tokens, simulations."""

import h5py
import numpy as np

from examples.gallery.program import GZIP, Program, measured, pixels
from h5stream import Ends, Field, H5StreamLoader, Padding, Sequences, Table, Take, Values


class Robomimic(Program):
    """A stack of two frames and the sixteen actions around each step of a demonstration, padded by the nearest step."""

    repository, subject, layout = "ARISE-Initiative/robomimic", "robotics", "a group for each demonstration"
    size = 30

    @staticmethod
    def make(folder, size=1):
        rng = np.random.default_rng(0)
        with h5py.File(folder / "demos.hdf5", "w") as file:
            for k in range(4 * size):
                steps, demo = int(rng.integers(9, 30)), file.create_group(f"data/demo_{k}")
                demo.create_dataset("obs/agentview_image", data=pixels(rng, steps, 84, 84, 3), **GZIP)
                demo["actions"], demo.attrs["num_samples"] = rng.random((steps, 7)), steps
            file["mask/train"] = [f"demo_{k}" for k in range(4 * size) if k % 4 != 2]

    def __init__(self, folder):
        self.file = h5py.File(folder / "demos.hdf5")
        demos = [name.decode() for name in self.file["mask/train"]]
        self.steps = [(name, k) for name in demos for k in range(self.file["data"][name].attrs["num_samples"])]

    def __len__(self):
        return len(self.steps)

    def __getitem__(self, index):
        name, step = self.steps[index]
        demo, length = self.file["data"][name], self.file["data"][name].attrs["num_samples"]

        def padded(key, first, last):
            values = demo[key][max(0, step + first) : min(length, step + last)]
            before, behind = max(0, -step - first), max(0, step + last - length)
            return np.concatenate([values[:1]] * before + [values] + [values[-1:]] * behind)

        coming = np.arange(step, step + 16)
        return {
            "image": padded("obs/agentview_image", -1, 1),
            "actions": padded("actions", 0, 16),
            "is_pad": coming >= length,
        }

    @staticmethod
    def ours(folder, **options):
        demos = h5py.File(folder / "demos.hdf5")["mask/train"].asstr()[:]
        return H5StreamLoader(
            folder / "demos.hdf5",
            samples=Sequences(16, of=[f"data/{name}" for name in demos], pad="edge"),
            fields={"image": Field("obs/agentview_image", take=[-1, 0]), "actions": "actions", "is_pad": Padding()},
            **options,
        )


class DiffusionPolicy(Program):
    """Windows of sixteen steps, which may begin one step before a demonstration and end seven behind it."""

    repository, subject, layout = "real-stanford/diffusion_policy", "robotics", "a group for each demonstration"
    in_memory = True

    @staticmethod
    def make(folder, size=1):
        rng = np.random.default_rng(0)
        with h5py.File(folder / "demos.hdf5", "w") as file:
            for k in range(3 * size):
                steps, demo = int(rng.integers(12, 40)), file.create_group(f"data/demo_{k}")
                demo.create_dataset("obs/agentview_image", data=pixels(rng, steps, 84, 84, 3), chunks=(1, 84, 84, 3))
                demo["actions"] = measured(rng, steps, 10)

    def __init__(self, folder):
        with h5py.File(folder / "demos.hdf5") as file:
            demos = [file[f"data/demo_{k}"] for k in range(len(file["data"]))]
            self.demos = [(demo["obs/agentview_image"][:], demo["actions"][:]) for demo in demos]
        self.windows = [
            (k, start) for k, (_, actions) in enumerate(self.demos) for start in range(-1, len(actions) - 16 + 7 + 1)
        ]

    def __len__(self):
        return len(self.windows)

    def __getitem__(self, index):
        k, start = self.windows[index]
        images, actions = self.demos[k]
        steps = np.clip(np.arange(start, start + 16), 0, len(actions) - 1)
        return {"image": images[steps[:2]], "action": actions[steps]}

    @staticmethod
    def ours(folder, **options):
        return H5StreamLoader(
            folder / "demos.hdf5",
            samples=Sequences(of="data/*", pad="edge", pad_rows=(1, 7)),
            fields={
                "image": Field("obs/agentview_image", take=range(-1, 1)),
                "action": Field("actions", take=range(-1, 15)),
            },
            **options,
        )


class ManiSkill(Program):
    """Two observations and the sixteen actions from the first on; outside of a demonstration the arm stands still.

    There is an observation more than there are actions. Windows begin a step before a demonstration at the earliest;
    actions outside of it are zero, but for that of the gripper, which is the nearest.
    """

    repository, subject, layout = "haosulab/ManiSkill", "robotics", "a group for each demonstration, states and actions"
    batch, size, in_memory, transforms = 256, 40, True, True

    @staticmethod
    def make(folder, size=1):
        rng = np.random.default_rng(0)
        with h5py.File(folder / "trajectory.h5", "w") as file:
            for k in range(5 * size):
                steps = int(rng.integers(12, 60))
                file.create_dataset(f"traj_{k}/obs", data=measured(rng, steps + 1, 42), **GZIP)
                file.create_dataset(f"traj_{k}/actions", data=measured(rng, steps, 8), **GZIP)

    def __init__(self, folder):
        with h5py.File(folder / "trajectory.h5") as file:
            trajectories = [file[f"traj_{k}"] for k in range(len(file))]
            self.data = [(one["obs"][:], one["actions"][:]) for one in trajectories]
        self.windows = [
            (k, start) for k, (_, actions) in enumerate(self.data) for start in range(-1, len(actions) - 16 + 14)
        ]

    def __len__(self):
        return len(self.windows)

    def __getitem__(self, index):
        trajectory, start = self.windows[index]
        observations, actions = self.data[trajectory]
        obs, act = observations[max(0, start) : start + 2], actions[max(0, start) : start + 16]
        if start < 0:
            obs, act = np.concatenate([obs[:1], obs]), np.concatenate([act[:1], act])
        if len(act) < 16:
            still = np.concatenate([np.zeros(7, "f4"), act[-1, -1:]])
            act = np.concatenate([act, np.repeat(still[None], 16 - len(act), axis=0)])
        return {"obs": obs, "actions": act}

    @staticmethod
    def ours(folder, **options):
        def standing_still(batch):
            batch["actions"][..., :-1][:, 1:][batch.pop("is_pad")[:, 1:]] = 0
            return batch

        return H5StreamLoader(
            folder / "trajectory.h5",
            samples=Sequences(of="traj_*", pad="edge", pad_rows=(1, 13), lengths="shortest"),
            fields={
                "obs": Field("obs", take=[-1, 0]),
                "actions": Field("actions", take=range(-1, 15)),
                "is_pad": Padding(steps=range(-1, 15)),
            },
            batch_transform=standing_still,
            **options,
        )


class Act(Program):
    """One random time of each episode: images, joints, and all actions from there on, zeros behind the end."""

    repository, subject, layout = "tonyzhaozh/act", "robotics", "a file for each episode"
    batch, size, drawn = 8, 10, True

    @staticmethod
    def make(folder, size=1):
        rng = np.random.default_rng(0)
        for k in range(5 * size):
            with h5py.File(folder / f"episode_{k}.hdf5", "w") as file:
                images = pixels(rng, 30, 120, 160, 3)
                file.create_dataset("observations/images/top", data=images, chunks=(1, 120, 160, 3))
                file["observations/qpos"], file["action"] = measured(rng, 30, 14), measured(rng, 30, 14)
                file.attrs["sim"] = True

    def __init__(self, folder):
        self.folder = folder

    def __len__(self):
        return len(list(self.folder.glob("episode_*.hdf5")))

    def __getitem__(self, index):
        return self.read(index, np.random.choice(30))

    def read(self, index, start):
        with h5py.File(self.folder / f"episode_{index}.hdf5") as file:
            action, is_pad = np.zeros(file["action"].shape, "f4"), np.ones(len(file["action"]), bool)
            action[: len(action) - start], is_pad[: len(action) - start] = file["action"][start:], False
            return {
                "image": file["observations/images/top"][start],
                "qpos": file["observations/qpos"][start],
                "action": action,
                "is_pad": is_pad,
            }

    def possible(self):
        return (self.read(k, start) for k in range(len(self)) for start in range(30))

    @staticmethod
    def ours(folder, **options):
        return H5StreamLoader(
            f"{folder}/episode_*.hdf5",
            samples=Sequences(30, of="files", starts="random", pad="zeros"),
            fields={
                "image": Field("observations/images/top", take=[0]),
                "qpos": Field("observations/qpos", take=[0]),
                "action": "action",
                "is_pad": Padding(),
            },
            **options,
        )


class FourCastNet(Program):
    """Some channels of two times as input, others of a later time as target, all of one year."""

    repository, subject, layout = "NVlabs/FourCastNet", "weather", "a file for each year"
    batch, size = 4, 10

    @staticmethod
    def make(folder, size=1):
        rng = np.random.default_rng(0)
        for year in (1979, 1980):
            with h5py.File(folder / f"{year}.h5", "w") as file:
                file.create_dataset("fields", data=measured(rng, 12 * size, 8, 90, 180), chunks=(1, 1, 90, 180))

    def __init__(self, folder):
        self.years = [h5py.File(folder / f"{year}.h5")["fields"] for year in (1979, 1980)]

    def __len__(self):
        return sum(len(fields) - 4 for fields in self.years)

    def __getitem__(self, index):
        year, time = divmod(index, len(self.years[0]) - 4)
        fields, time = self.years[year], time + 2
        return {"x": fields[time - 2 : time + 1 : 2, [0, 3, 5]], "y": fields[time + 2, [1, 2]]}

    @staticmethod
    def ours(folder, **options):
        return H5StreamLoader(
            f"{folder}/*.h5",
            samples=Sequences(of="files"),
            fields={
                "x": Field("fields", columns=[0, 3, 5], take=[-2, 0]),
                "y": Field("fields", columns=[1, 2], take=[2]),
            },
            **options,
        )


class D4RL(Program):
    """Transitions to the next observation, but none over the end of an episode."""

    repository, subject, layout = (
        "rail-berkeley/d4rl",
        "reinforcement learning",
        "one flat buffer with flags at the ends",
    )
    batch, size, in_memory = 256, 1000, True

    @staticmethod
    def make(folder, size=1):
        rng, rows = np.random.default_rng(0), 200 * size
        with h5py.File(folder / "buffer.hdf5", "w") as file:
            for name, shape in {"observations": (rows, 17), "actions": (rows, 6), "rewards": (rows,)}.items():
                file.create_dataset(name, data=measured(rng, *shape), compression="gzip")
            for name in ("terminals", "timeouts"):
                file.create_dataset(name, data=rng.random(rows) < 0.02, compression="gzip")

    def __init__(self, folder):
        with h5py.File(folder / "buffer.hdf5") as file:
            self.data = {name: file[name][:] for name in file}
        ends = self.data["terminals"] | self.data["timeouts"]
        self.rows = np.flatnonzero(~ends[:-1])

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        row, data = self.rows[index], self.data
        found = {name: data[name][row] for name in ("observations", "actions", "rewards")}
        return {**found, "next_observations": data["observations"][row + 1]}

    @staticmethod
    def ours(folder, **options):
        fields = {name: Field(name, take=[0]) for name in ("observations", "actions", "rewards")}
        return H5StreamLoader(
            folder / "buffer.hdf5",
            samples=Sequences(of=Ends("terminals", "timeouts")),
            fields={**fields, "next_observations": Field("observations", take=[1])},
            **options,
        )


class TokenWindows(Program):
    """A stretch of tokens, and the same shifted by one."""

    repository, subject, layout = "soyuz43/my-model", "language", "one long row of tokens"
    size = 200

    @staticmethod
    def make(folder, size=1):
        tokens = np.random.default_rng(0).integers(0, 50257, 4000 * size).astype("i4")
        with h5py.File(folder / "tokens.h5", "w") as file:
            file.create_dataset("tokens", data=tokens, chunks=True)

    def __init__(self, folder):
        self.tokens = h5py.File(folder / "tokens.h5")["tokens"]

    def __len__(self):
        return (len(self.tokens) - 1) // 128

    def __getitem__(self, index):
        found = self.tokens[index * 128 : index * 128 + 129]
        return {"x": found[:-1], "y": found[1:]}

    @staticmethod
    def ours(folder, **options):
        return H5StreamLoader(
            folder / "tokens.h5",
            samples=Sequences(stride=128),
            fields={"x": Field("tokens", take=range(128)), "y": Field("tokens", take=range(1, 129))},
            **options,
        )


class MultiplePhysicsPretraining(Program):
    """Some times of a simulation as history, the next one as target, of several fields side by side."""

    repository, subject, layout = "PolymathicAI/multiple_physics_pretraining", "physics", "simulations x time, in files"
    batch, size = 8, 6

    @staticmethod
    def make(folder, size=1):
        rng = np.random.default_rng(0)
        for k, simulations in enumerate((2 * size, size)):
            with h5py.File(folder / f"ns_{k}.h5", "w") as file:
                for name, channels in (("velocity", 2), ("particles", 1)):
                    file.create_dataset(
                        name, data=measured(rng, simulations, 20, 64, 64, channels), chunks=(1, 5, 32, 32, channels)
                    )

    def __init__(self, folder):
        self.files = [h5py.File(folder / f"ns_{k}.h5") for k in range(2)]
        self.samples = [(file, k, t) for file in self.files for k in range(len(file["velocity"])) for t in range(4, 20)]

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        file, simulation, time = self.samples[index]
        velocity, particles = (file[name][simulation, time - 4 : time + 1] for name in ("velocity", "particles"))
        return {"velocity": velocity[:-1], "particles": particles[:-1], "target": velocity[-1]}

    @staticmethod
    def ours(folder, **options):
        return H5StreamLoader(
            f"{folder}/*.h5",
            samples=Sequences(of="rows", axis=1),
            fields={
                "velocity": Field("velocity", take=range(4)),
                "particles": Field("particles", take=range(4)),
                "target": Field("velocity", take=[4]),
            },
            **options,
        )


class Poseidon(Program):
    """All pairs of two times of each simulation, two of its three channels, and the time between them."""

    repository, subject, layout = "camlab-ethz/poseidon", "physics", "simulations x time x channels"
    batch, size = 16, 8

    @staticmethod
    def make(folder, size=1):
        rng = np.random.default_rng(0)
        with h5py.File(folder / "ns.nc", "w") as file:
            file.create_dataset("velocity", data=measured(rng, 3 * size, 21, 3, 64, 64), chunks=(1, 3, 3, 64, 64))

    def __init__(self, folder):
        self.file = h5py.File(folder / "ns.nc")
        self.pairs = [(i, j) for i in range(0, 21, 4) for j in range(i, 21, 4)]

    def __len__(self):
        return len(self.file["velocity"]) * len(self.pairs)

    def __getitem__(self, index):
        simulation, (first, second) = index // len(self.pairs), self.pairs[index % len(self.pairs)]
        velocity = self.file["velocity"]
        return {
            "input": velocity[simulation, first, 0:2],
            "label": velocity[simulation, second, 0:2],
            "time": second - first,
        }

    @staticmethod
    def ours(folder, **options):
        simulations = len(h5py.File(folder / "ns.nc")["velocity"])
        pairs = [(k, i, j) for k in range(simulations) for i in range(0, 21, 4) for j in range(i, 21, 4)]
        row, first, second = np.array(pairs).T
        return H5StreamLoader(
            folder / "ns.nc",
            samples=Table(axis=1, row=row, start=first, end=second),
            fields={
                "input": Field("velocity", columns=slice(0, 2)),
                "label": Field("velocity", columns=slice(0, 2), take=Take(at="end")),
                "time": Values(second - first),
            },
            **options,
        )


class LaBraM(Program):
    """Windows along the second axis of each subject's recording, every so often."""

    repository, subject, layout = "935963004/LaBraM", "EEG", "a group for each subject, channels x time"
    size = 10

    @staticmethod
    def make(folder, size=1):
        rng = np.random.default_rng(0)
        with h5py.File(folder / "eeg.hdf5", "w") as file:
            for k in range(3):
                eeg = measured(rng, 23, (4000 + 300 * k) * size)
                file.create_dataset(f"subject_{k}/eeg", data=eeg, chunks=(23, 200))
                file[f"subject_{k}"].attrs["rsFreq"] = 200

    def __init__(self, folder):
        self.file = h5py.File(folder / "eeg.hdf5")
        self.windows = [
            (name, start) for name in self.file for start in range(0, self.file[name]["eeg"].shape[1] - 799, 200)
        ]

    def __len__(self):
        return len(self.windows)

    def __getitem__(self, index):
        name, start = self.windows[index]
        return {"eeg": self.file[name]["eeg"][:, start : start + 800]}

    @staticmethod
    def ours(folder, **options):
        samples = Sequences(800, stride=200, of="*", axis=1)
        return H5StreamLoader(folder / "eeg.hdf5", samples=samples, fields={"eeg": "eeg"}, **options)


class EarthFormer(Program):
    """Thirteen frames of an event that a catalogue lists by file and row, time being the last axis."""

    repository, subject, layout = (
        "amazon-science/earth-forecasting-transformer",
        "weather",
        "events, time last, in files",
    )
    batch, size = 8, 3

    @staticmethod
    def make(folder, size=1):
        rng = np.random.default_rng(0)
        for year in (2018, 2019):
            with h5py.File(folder / f"SEVIR_VIL_{year}.h5", "w") as file:
                file.create_dataset("vil", data=pixels(rng, 3 * size, 192, 192, 49), chunks=(1, 192, 192, 49), **GZIP)
        events = rng.permutation(6 * size)[: 5 * size]
        np.save(folder / "catalogue.npy", np.stack([events // (3 * size), events % (3 * size)], 1))

    def __init__(self, folder):
        self.files = [h5py.File(folder / f"SEVIR_VIL_{year}.h5") for year in (2018, 2019)]
        self.samples = [(*event, start) for event in np.load(folder / "catalogue.npy") for start in range(0, 37, 12)]

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        file, event, start = self.samples[index]
        return {"vil": self.files[file]["vil"][event, :, :, start : start + 13]}

    @staticmethod
    def ours(folder, **options):
        file, row = np.load(folder / "catalogue.npy").repeat(4, axis=0).T
        start = np.tile(range(0, 37, 12), len(row) // 4)
        samples = Table(axis=-1, length=13, file=file, row=row, start=start)
        return H5StreamLoader(f"{folder}/SEVIR_VIL_*.h5", samples=samples, fields={"vil": "vil"}, **options)
