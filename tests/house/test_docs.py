"""What the documentation says is so: its code runs, its tables are the code's, what it names exists.

Each page is a reader who begins with an empty folder, the clone's `examples`, and what ``pip install`` gave him: what
Python and what commands a page shows are run as they are printed, in the page's order. A block whose title says what it
needs, such as a GPU, is only looked at.
"""

import ast
import builtins
import importlib
import inspect
import multiprocessing
import re
import runpy
import shlex
import subprocess
import sys
import types
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
import typer
from support.commands import printed
from support.each import for_each
from support.forking import SERVED
from support.making import write_datasets
from torch.utils.data import DataLoader

import h5stream
from h5stream import H5Dataset, H5StreamLoader
from h5stream.cli.app import app

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(path for path in DOCS.rglob("*.md") if not path.name.startswith("notes-"))
SHOWN = [
    path for path in [ROOT / "README.md", *PAGES] if path.name != "gallery.md"
]  # whose code tests/house/test_gallery.py runs
BLOCK = re.compile(r'^```(\w*)(?: title="([^"]+)")?\n(.*?)^```$', flags=re.S | re.M)
LANGUAGES = {"python", "bash", "console", "text", "diff", "toml"}


def all_blocks(page):
    """Return language, title and text of each block of a page."""
    return BLOCK.findall(page.read_text())


def blocks(page):
    return [code for language, _, code in all_blocks(page) if language == "python"]


def commands_in(text):
    """Return the commands of this project that lines for a shell call, as lists of words."""
    lines = text.replace("\\\n", " ").splitlines()
    every = [shlex.split(line, comments=True) for line in lines]
    return [words for words in every if words and (words[0] == "h5stream" or words[:1] == ["python"])]


def call(words):
    """Run a command as a shell would, but in this process, which has imported torch already."""
    if words[0] == "h5stream":
        printed(*words[1:])
    elif words[1] != "-m":
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", words[1:])
            patch.syspath_prepend(str(Path(words[1]).parent))
            runpy.run_path(words[1], run_name="__main__")


@pytest.mark.parametrize("page", SHOWN, ids=lambda page: page.stem)
def test_what_a_page_shows_runs_from_top_to_bottom(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    Path("examples").symlink_to(ROOT / "examples")
    script = types.ModuleType("__main__")
    script.__file__ = str(tmp_path / "page.py")  # which workers import to find a function
    monkeypatch.setitem(sys.modules, "__main__", script)
    monkeypatch.setitem(multiprocessing.context._concrete_contexts, "spawn", SERVED)  # its start takes no seconds
    only_seen = set()
    for language, title, code in all_blocks(page):
        assert language in LANGUAGES, code
        if language == "python":
            compiled = compile(code, f"{page.name}: {code[:60]}", "exec")
            if title:
                used, made = names_in(code)
                only_seen |= made
                assert used - only_seen <= set(vars(script)), code
            else:
                # A block with this line is a script of its own: its processes are not to run the blocks before it.
                with Path(script.__file__).open("w" if "__main__" in code else "a") as file:
                    file.write(code)
                exec(compiled, vars(script))
        elif language == "bash" and not title:
            for words in commands_in(code):
                call(words)


def names_in(code):
    """Return the names that a block uses, and those that it makes or Python has."""
    tree = ast.parse(code)
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    made = {node.id for node in names if isinstance(node.ctx, ast.Store)} | set(dir(builtins))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            made.add(node.name)
        elif isinstance(node, ast.arg):
            made.add(node.arg)
        elif isinstance(node, ast.alias):
            made.add((node.asname or node.name).split(".")[0])
    return {node.id for node in names}, made


def test_nearly_all_of_it_runs():
    every = [(language, title) for page in SHOWN for language, title, _ in all_blocks(page)]
    titles = {title for language, title in every if title}
    assert {title.split()[0] for title in titles} <= {"Needs", "Takes", "Runs"}
    assert sum(bool(title) for _, title in every) <= 20
    assert sum(language == "python" and not title for language, title in every) >= 40


def test_dtypes_come_as_the_table_says(tmp_path):
    table = re.findall(r"^\|[^|]+\| `([^`]+)` \| `(torch\.\w+)` \|$", (DOCS / "fields.md").read_text(), flags=re.M)
    assert len(table) == 16
    for stored, promised in table:
        path = write_datasets(tmp_path / f"{stored}.h5", x=np.zeros((3, 2), stored))
        assert f"{H5Dataset(path, 'x')[:2].dtype}" == promised


def test_every_argument_of_dataloader_and_of_our_own_is_in_the_swap_in_guide():
    theirs = inspect.signature(DataLoader.__init__).parameters
    page = (DOCS / "swap-in.md").read_text()
    for name in theirs:
        assert name == "self" or f"| `{name}` |" in page.split("## Every argument")[1]
    ours = set(inspect.signature(H5StreamLoader.__init__).parameters) - {*theirs}
    assert [name for name in sorted(ours) if f"`{name}`" not in page] == []


ROOMS = ("advice", "errors", "monitor", "order", "ray", "results", "samples", "staging", "training")
DOORS = ("h5stream", *(f"h5stream.{room}" for room in ROOMS))


def test_the_api_pages_have_everything_public_and_nothing_else():
    text = "\n".join(path.read_text() for path in (DOCS / "api").glob("*.md"))
    shown = set(re.findall(r"^::: (\S+)$", text, flags=re.M))
    public = {f"h5stream.{name}" for name in h5stream.__all__} - {"h5stream.__version__", "h5stream.H5StreamError"}
    assert public - shown == set()
    for name in shown - public:
        door, _, attribute = name.rpartition(".")
        assert door in DOORS
        assert attribute in importlib.import_module(door).__all__


def test_its_signatures_have_types_and_values_and_no_old_names():
    griffe = pytest.importorskip("griffe", reason="the extra 'docs' is not installed; CI builds the site")
    package = griffe.load(
        "h5stream", search_paths=[ROOT], extensions=griffe.load_extensions(ROOT / "tools/true_defaults.py")
    )
    parameters = package["loader.loader.H5StreamLoader.__init__"].parameters
    assert str(parameters["batch_size"].default) == "8192"
    assert str(parameters["batch_size"].annotation) == "int | None"
    assert "old" not in parameters
    assert "old" not in package["storage.layout.fields.Field.__init__"].parameters
    assert "show_signature_annotations: true" in (ROOT / "mkdocs.yml").read_text()


@for_each([*PAGES, *sorted((ROOT / "examples").glob("*.py")), ROOT / "README.md"])
def test_pages_and_examples_use_what_is_public(path):
    text = "\n".join(blocks(path)) if path.suffix == ".md" else path.read_text()
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


INNER = ["import h5stream.storage.layout.layout", "h5stream.engine.kernels.scatter()", "loader._orders.position"]
INNER += ["from h5stream.order.blocks import (\n    Blocks,\n)", "def f():\n    from h5stream import options"]


@for_each(INNER)
def test_inner_names_are_found(code):
    assert len(list(inner_names(ast.parse(code)))) == 1


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
    a_path = r"`((?:tests|examples|tools|bench|docs)/[\w./-]+)`"
    named = {(page.name, path) for page in PAGES for path in re.findall(a_path, page.read_text())}
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
    listed = re.findall(r"(?:[:-]|^ ) ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), flags=re.M)
    assert sorted(listed) == sorted(str(page.relative_to(DOCS)) for page in PAGES)


@pytest.mark.skipif(
    not version("typer").startswith("0.29."), reason="help looks otherwise with other versions of typer"
)
def test_the_command_line_page_is_what_the_commands_say():
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "command_line_page.py", "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
