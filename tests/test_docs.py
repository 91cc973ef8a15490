"""What the documentation says is so: its code runs, its tables are the code's, what it names exists.

A block after ``<!-- not run: why -->`` is only compiled.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import h5py
import imagecodecs
import numpy as np
import pytest
import typer
from each import for_each
from torch.utils.data import DataLoader

import h5stream
from h5stream import H5Dataset, H5StreamLoader
from h5stream.cli.app import app

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(path for path in DOCS.rglob("*.md") if not path.name.startswith("notes-"))
BLOCK = re.compile(r"(<!-- not run: [^>]+ -->\n)?```python\n(.*?)```", flags=re.S)


def blocks(page):
    return [(bool(marked), code) for marked, code in BLOCK.findall(page.read_text())]


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Work where the pages' code finds its files."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for name in ("train.h5", "table.h5"):
        with h5py.File(name, "w") as f:
            f.create_dataset("x", data=rng.random((2000, 64), dtype="f4"), chunks=(200, 64), compression="gzip")
            f["y"], f["patient"] = np.arange(2000) % 10, np.arange(2000) // 37
            f["obs"] = np.ones(2000, [("age", "i4"), ("height", "f4")])
    with h5py.File("demos.h5", "w") as f, h5py.File("molecules.h5", "w") as molecules:
        for k in range(3):
            f[f"data/demo_{k}/obs/image"], f[f"data/demo_{k}/actions"] = (
                np.zeros((30, 8, 8, 3), "u1"),
                np.zeros((30, 7)),
            )
            molecules[f"{k}/coordinates"], molecules[f"{k}/energies"] = np.zeros((9, 5, 3)), np.zeros(9)
            molecules[f"{k}/species"] = np.arange(5)
            molecules[f"{k}"].attrs["name"] = "water"
    Path("simulated").mkdir()
    shutil.copy("demos.h5", "simulated/0.h5")
    with h5py.File("particles.h5", "w") as particles, h5py.File("photos.h5", "w") as photos:
        particles["caption"], particles["label"], photos["label"] = ["a", "bc"] * 10, np.arange(20), np.arange(70)
        energies = particles.create_dataset("energies", (20,), dtype=h5py.vlen_dtype("f4"))
        images = photos.create_dataset("image", (70,), dtype=h5py.vlen_dtype("u1"))
        encoded = np.frombuffer(imagecodecs.jpeg8_encode(np.zeros((8, 12, 3), "u1")), "u1")
        for k in range(70):
            images[k] = encoded
            energies[k % 20] = np.arange(k)
    with h5py.File("images.h5", "w") as keyed:
        for k in range(20):
            keyed[f"images/{k}"] = encoded
            keyed[f"images/{k}"].attrs["label"] = k
    with h5py.File("stead.h5", "w") as stead, h5py.File("poisson.h5", "w") as poisson:
        for k in range(300):
            stead[f"data/{k}"] = np.zeros((60, 3), "f4")
            stead[f"data/{k}"].attrs["p_arrival_sample"] = k
            poisson[f"sample_{k}/input"], poisson[f"sample_{k}/output"] = np.zeros((8, 8)), np.zeros((8, 8))
    with h5py.File("events.h5", "w") as events:
        events["hit_charge"], events["hit_time"] = np.zeros(900, "f4"), np.zeros(900, "f4")
        events["event_hits_index"], events["labels"] = np.arange(301) * 3, np.zeros(300)
    with h5py.File("cells.h5ad", "w") as cells, h5py.File("speech.h5", "w") as speech:
        cells["X/data"], cells["X/indices"], cells["X/indptr"] = np.ones(9, "f4"), np.arange(9) % 4, np.arange(10)
        cells["X"].attrs["shape"], cells["X"].attrs["encoding-type"] = (9, 4), "csr_matrix"
        cells["obs/cell_type/codes"], cells["obs/cell_type/categories"] = np.zeros(9, "i1"), ["B"]
        for k in range(6):
            speech.create_dataset(f"utt_{k}", data=np.zeros(k + 1, "f4")).attrs["text"] = "words"
    with h5py.File("embeddings.h5", "w") as proteins:
        proteins["P1"], proteins["P2"], proteins["P7"] = np.zeros((3, 2)), np.zeros((5, 2)), np.zeros((4, 2))
    Path("slices").mkdir()
    for k in range(20):
        with h5py.File(f"slices/{k}.h5", "w") as one:
            one["image"], one["label"] = np.zeros((8, 8)), np.zeros((8, 8), "u1")
    with h5py.File("eeg.h5", "w") as f:
        for subject in "ab":
            f[f"{subject}/signal"], f[f"{subject}/stage"] = np.zeros((4, 300)), np.arange(10)
    for name in ("volume_0.h5", "volume_1.h5"):
        with h5py.File(name, "w") as f:
            f["raw"], f["label"] = np.zeros((20, 40, 50), "f4"), np.zeros((20, 40, 50), "u1")
    with h5py.File("questions.h5", "w") as f, h5py.File("features.h5", "w") as g, h5py.File("answers.h5", "w") as h:
        f["question"], f["image_index"], h["answer"] = np.arange(100), np.arange(100) % 7, np.arange(100)
        g["features"] = rng.random((7, 50))


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda page: page.stem)
def test_the_code_on_a_page_runs_from_top_to_bottom(page, files):
    names = {"__name__": page.stem}
    for marked, code in blocks(page):
        compiled = compile(code, page.name, "exec")
        if not marked:
            exec(compiled, names)


def test_most_code_runs():
    marked = [marked for page in PAGES for marked, _ in blocks(page)]
    assert len(marked) >= 12
    assert sum(marked) <= 4


DTYPES = re.findall(r"^\|[^|]+\| `([^`]+)` \| `(torch\.\w+)` \|$", (DOCS / "fields.md").read_text(), flags=re.M)


def test_the_table_of_dtypes_has_every_one():
    assert len(DTYPES) == 16


@pytest.mark.parametrize(("stored", "promised"), DTYPES)
def test_a_dtype_comes_as_the_table_says(stored, promised, tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as f:
        f["x"] = np.zeros((3, 2), stored)
    assert f"{H5Dataset(tmp_path / 'a.h5', 'x')[:2].dtype}" == promised


def test_every_argument_of_dataloader_is_in_the_swap_in_guide():
    table = (DOCS / "swap-in.md").read_text().split("## Every argument")[1]
    for name in inspect.signature(DataLoader.__init__).parameters:
        assert name == "self" or f"| `{name}` |" in table


def test_every_argument_of_our_own_is_named_there_too():
    theirs = inspect.signature(DataLoader.__init__).parameters
    page = (DOCS / "swap-in.md").read_text()
    ours = set(inspect.signature(H5StreamLoader.__init__).parameters) - set(theirs)
    assert [name for name in sorted(ours) if f"`{name}`" not in page] == []


DOORS = ("h5stream", "h5stream.errors", "h5stream.monitor", "h5stream.staging")


def test_the_api_page_has_everything_public_and_nothing_else():
    shown = set(re.findall(r"^::: (\S+)$", (DOCS / "api.md").read_text(), flags=re.M))
    public = {f"h5stream.{name}" for name in h5stream.__all__} - {"h5stream.__version__", "h5stream.H5StreamError"}
    assert public - shown == set()
    for name in shown - public:
        door, _, attribute = name.rpartition(".")
        assert door in DOORS
        assert attribute in importlib.import_module(door).__all__


def test_its_defaults_are_values_and_not_names_of_constants():
    griffe = pytest.importorskip("griffe", reason="the extra 'docs' is not installed; CI builds the site")
    package = griffe.load(
        "h5stream", search_paths=[ROOT], extensions=griffe.load_extensions(ROOT / "tools/true_defaults.py")
    )
    assert str(package["loader.H5StreamLoader.__init__"].parameters["batch_size"].default) == "8192"


@for_each([*PAGES, *sorted((ROOT / "examples").glob("*.py")), ROOT / "README.md"])
def test_pages_and_examples_use_what_is_public(path):
    text = "\n".join(code for _, code in blocks(path)) if path.suffix == ".md" else path.read_text()
    assert list(inner_names(ast.parse(text))) == []


def offered(door):
    return dir(h5stream.errors) if door == "h5stream.errors" else importlib.import_module(door).__all__


def inner_names(tree):
    """Yield what a program takes from h5stream that is not public: imports, and private attributes of anything."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name.split(".")[0] == "h5stream"]
            yield from (name for name in names if name not in DOORS)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "h5stream":
            names = offered(node.module) if node.module in DOORS else []
            yield from (f"{node.module}.{alias.name}" for alias in node.names if alias.name not in names)
        elif isinstance(node, ast.Attribute):
            door, name = ast.unparse(node.value), node.attr
            if (door in DOORS and f"{door}.{name}" not in DOORS and name not in offered(door)) or (
                name.startswith("_") and not name.startswith("__") and door != "self"
            ):
                yield f"{door}.{name}"


@pytest.mark.parametrize(
    "code",
    [
        "from h5stream.order.blocks import (\n    Blocks,\n)",
        "import h5stream.storage.layout",
        "def f():\n    from h5stream import options",
        "h5stream.engine.kernels.warm_up()",
        "loader._orders.position",
    ],
)
def test_inner_names_are_found(code):
    assert len(list(inner_names(ast.parse(code)))) == 1


def slow_transforms(tree):
    """Yield what a function that is given as `transform` computes into new memory."""
    given = {
        ast.unparse(word.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        for word in node.keywords
        if word.arg == "transform"
    }
    for node in ast.walk(tree):
        if (isinstance(node, ast.FunctionDef) and node.name in given) or (
            isinstance(node, ast.Lambda) and ast.unparse(node) in given
        ):
            yield from (ast.unparse(inner) for inner in ast.walk(node) if isinstance(inner, ast.BinOp))


def test_no_page_teaches_the_slow_form_of_a_transform():
    """Arithmetic into new memory on large batches takes several times as long as in place."""
    texts = ["\n".join(code for _, code in blocks(page)) for page in [*PAGES, ROOT / "README.md"]]
    texts += [path.read_text() for path in (ROOT / "examples").glob("*.py")]
    taught = [slow for text in texts for slow in slow_transforms(ast.parse(text))]
    assert taught == []
    assert any("transform=" in text for text in texts)


@pytest.mark.parametrize("form", ["def f(x):\n    return x / 255\nL(transform=f)", "L(transform=lambda x: x * 2)"])
def test_a_slow_form_is_found(form):
    assert len(list(slow_transforms(ast.parse(form)))) == 1


def commands():
    for page in [*PAGES, ROOT / "README.md"]:
        text = page.read_text()
        for block in re.findall(r"```(?:bash)?\n(.*?)```", text, flags=re.S):
            for line in block.splitlines():
                if line.strip().startswith("h5stream "):
                    yield page.name, line.split("#")[0]
        for line in re.findall(r"`(h5stream [^`]+)`", text):
            yield page.name, line


@for_each(sorted(set(commands())))
def test_a_command_that_is_named_exists_with_its_options(page, line):
    words = shlex.split(line.strip())
    known = typer.main.get_command(app).commands
    assert words[1] in known, f"{page}: {line}"
    options = {option for parameter in known[words[1]].params for option in parameter.opts}
    assert {word for word in words[2:] if word.startswith("--")} <= options


def test_options_that_messages_name_exist():
    known = typer.main.get_command(app).commands
    for path in sorted((ROOT / "h5stream").rglob("*.py")):
        for name, words in re.findall(r"h5stream (\w+)((?: [\w./{}*-]+)* --[\w-]+)", path.read_text()):
            options = {option for parameter in known[name].params for option in parameter.opts} if name in known else ()
            for option in re.findall(r"--[\w-]+", words) if options else ():
                assert option in options, f"{path.name}: h5stream {name} {option}"


def test_files_that_are_named_exist():
    named = {
        (page.name, path)
        for page in PAGES
        for path in re.findall(r"`((?:tests|examples|tools|bench|docs)/[\w./-]+)`", page.read_text())
    }
    assert len(named) > 15
    assert [f"{page}: {path}" for page, path in sorted(named) if not (ROOT / path).exists()] == []


def test_attributes_of_statistics_that_are_named_exist():
    from h5stream.engine.statistics import LoaderStatistics

    table = (DOCS / "monitor.md").read_text().split("| figure |")[1].split("The [API]")[0]
    names = re.findall(r"^\| `(\w+)` \|", table, flags=re.M)
    assert len(names) > 5
    assert all(hasattr(LoaderStatistics, name) for name in names)


def test_every_option_of_the_training_script_in_the_guide_exists():
    page = (DOCS / "training.md").read_text()
    script = (ROOT / "examples" / "train.py").read_text()
    named = set(re.findall(r"(--[a-z][\w-]+)", page)) - {"--no-"}
    assert [option for option in sorted(named) if f'"{option}"' not in script] == []


def test_every_page_is_in_the_navigation():
    listed = re.findall(r"[:-] ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), flags=re.M)
    assert sorted(listed) == sorted(str(page.relative_to(DOCS)) for page in PAGES)


def test_the_command_line_page_is_what_the_commands_say():
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "command_line_page.py", "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow  # .ci/run builds it too
def test_the_site_is_built_without_anything_from_elsewhere(tmp_path):
    pytest.importorskip("mkdocstrings", reason="the extra 'docs' is not installed; CI builds the site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path / "site"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) > len(PAGES)
    for page in pages:
        loaded = re.findall(r"<(?:script|link|img)[^>]+(?:src|href)=\"?(https?://[^\"> ]+)", page.read_text())
        assert loaded == [], page.name
