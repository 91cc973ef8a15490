"""Files from a stranger: what they claim costs nothing, and what they hold is never executed or shown raw."""

import ast
import bz2
import os
import struct
import zlib
from pathlib import Path

import h5py
import hdf5plugin
import numpy as np
import pytest
from support.amounts import crossed
from support.forking import guards_are_forks
from support.making import low_level, write_datasets
from support.mutant_reader import EQUAL, ERROR
from typer.testing import CliRunner

import h5stream
from h5stream import H5Dataset
from h5stream.advice.inspection import inspect_file
from h5stream.advice.listing import list_file
from h5stream.advice.program import tried
from h5stream.cli.app import app
from h5stream.errors import CorruptChunkError, FieldNotFoundError, SourceError, UnsupportedFieldError
from h5stream.storage.decode.filters import DecodeScratch, Filter, NotAskedError
from h5stream.storage.decode.pipeline import Pipeline
from h5stream.storage.file.discovery import datasets_of

CORPUS = Path(os.environ.get("H5STREAM_CORPUS") or Path(__file__).resolve().parents[3] / "shared" / "corpus")
ODD = sorted(p for p in (CORPUS / "odd").rglob("*") if p.is_file() and p.stat().st_size < 32 << 20)


# --- claims ---------------------------------------------------------------------------------------------------

CLAIMS = {
    "2^60 rows": {"shape": (2**60,), "dtype": "u1", "chunks": (2**20,)},
    "2^60 rows in one chunk each": {"shape": (2**60,), "dtype": "u1", "chunks": (1,)},
    "2^60 rows, not chunked": {"shape": (2**60,), "dtype": "u1"},
    "chunks of 2 GiB": {"shape": (2**40,), "dtype": "u1", "chunks": (2**31,)},
    "rows of 2^50 elements": {"shape": (4, 2**50), "dtype": "u1", "chunks": (1, 2**10)},
    "rows in 2^28 chunks": {"shape": (4, 2**28), "dtype": "u1", "chunks": (1, 1)},
    "rows in 2^22 chunks": {"shape": (4, 2**22), "dtype": "u1", "chunks": (1, 1)},
    "rows of 2^30 elements": {"shape": (4, 2**30), "dtype": "u1", "chunks": (4, 2**29)},
    "strings of 2 GB": {"shape": (2**40,), "dtype": "S2000000000", "chunks": (1,)},
    "2^33 rows of 2^20 numbers": {"shape": (2**33, 2**20), "dtype": "f4"},
}


# A first batch of it takes thousands of reads.
SLOW = {"chunks of 2 GiB"}


@pytest.mark.parametrize(
    ("claim", "libver"),
    [
        *crossed(tuple(claim for claim in CLAIMS if claim not in SLOW), ("earliest", "latest")),
        *(pytest.param(claim, libver, marks=pytest.mark.slow) for claim in SLOW for libver in ("earliest", "latest")),
    ],
)
def test_a_small_file_that_claims_much_costs_nothing(tmp_path, reader, claim, libver):
    """In a child that may take 1 GiB; the claims would need a thousand times that."""
    path = tmp_path / "claim.h5"
    with h5py.File(path, "w", libver=libver) as file:
        file.create_dataset("x", **CLAIMS[claim])
    assert path.stat().st_size < 2048
    outcome, detail = reader.outcome(str(path), "touch")
    assert outcome in (ERROR, EQUAL), detail


def zstd_claiming(nbytes):
    return struct.pack("<IBQ", 0xFD2FB528, 0xE0, nbytes) + bytes(40)


BOMBS = {
    "gzip": (lambda: zlib.compress(bytes(64 << 20), 9), {"compression": "gzip"}),
    "bzip2": (lambda: bz2.compress(bytes(64 << 20)), hdf5plugin.BZip2()),
    "zstd": (lambda: zstd_claiming(1 << 40), hdf5plugin.Zstd()),
    "lz4": (lambda: struct.pack(">QII", 1 << 40, 1 << 30, 16) + bytes(16), hdf5plugin.LZ4()),
    "bitshuffle": (lambda: struct.pack(">QII", 1 << 40, 8192, 16) + bytes(16), hdf5plugin.Bitshuffle()),
    "blosc": (lambda: struct.pack("<BBBBIII", 2, 1, 1, 1, 0x7FFFFFF0, 4096, 64) + bytes(48), hdf5plugin.Blosc()),
    "szip": (lambda: struct.pack("<I", 0xFFFFFFF0) + bytes(64), {"compression": "szip"}),
}


@pytest.mark.parametrize("codec", BOMBS)
def test_a_decompression_bomb_is_refused_before_its_memory_is_taken(tmp_path, reader, codec):
    """In a child that may take 1 GiB beyond what Python has; a bomb that went off would be a `MemoryError`."""
    stored, filters = BOMBS[codec]
    with h5py.File(tmp_path / "bomb.h5", "w") as file:
        dataset = file.create_dataset("x", (4096,), "u1", chunks=(4096,), **filters)
        dataset.id.write_direct_chunk((0,), stored(), 0)
    outcome, detail = reader.outcome(str(tmp_path / "bomb.h5"), "touch")
    assert outcome == ERROR, detail
    assert "corrupt" in detail
    with pytest.raises(CorruptChunkError):
        H5Dataset(tmp_path / "bomb.h5", "x")[:]


@pytest.mark.parametrize(
    ("filter_id", "values", "stored", "words"),
    [
        (32015, (), b"\x28\xb5\x2f\xfd\x00\x00\x00\x00", "zstd: its zstd frame does not say how long it is"),
        (32015, (), b"\x28\xb5\x2f\xfd\xe0\x00", "zstd: 6 bytes are too few for its header"),
        (32015, (), bytes(64), "zstd: it is not a zstd frame"),
        (32015, (), zstd_claiming(1 << 40), "zstd: it claims to decode to 1,099,511,627,776 bytes"),
        (32004, (), struct.pack(">QII", 1 << 40, 1 << 30, 16) + bytes(16), "lz4: it claims to decode to 1,099,511,627"),
        (32004, (), struct.pack(">QII", 4096, 0, 16) + bytes(16), "lz4: its blocks end before all were read"),
        (32004, (), struct.pack(">QII", 4096, 4096, 17) + bytes(16), "lz4: it claims to be 33 bytes long, but 32 are"),
        (32004, (), struct.pack(">QII", 4096, 2048, 2048) + bytes(2048), "lz4: its blocks end before all were read"),
        (32001, (), struct.pack("<IIII", 2, 1 << 24, 4096, 64) + bytes(48), "blosc: it claims to decode to 16,777,216"),
        (
            32001,
            (),
            struct.pack("<IIII", 2, 4096, 4096, 65) + bytes(48),
            "blosc: it claims to be 65 bytes long, but 64",
        ),
        (32001, (), bytes(10), "blosc: 10 bytes are too few for its header"),
        (32026, (), bytes(16) + struct.pack(">q", 1 << 40) + bytes(64), "blosc2: it claims to be 1,099,511,627,776"),
        (32026, (), bytes(58) + b"\xff" * 32, "blosc2: it claims to decode to -1 bytes"),
        (32008, (0, 4, 4, 0, 3), struct.pack(">QII", 4096, 8192, 1 << 31) + bytes(64), "bitshuffle: it claims to be"),
        (32008, (0, 4, 4, 0, 3), struct.pack(">QII", 4096, 32, 1) + bytes(9), "bitshuffle: its blocks end before all"),
        (
            32008,
            (0, 4, 4, 0, 2),
            struct.pack(">QII", 4096, 2048, 1 << 31) + bytes(64),
            "bitshuffle: its blocks end before",
        ),
        (
            32008,
            (0, 4, 4, 0, 2),
            struct.pack(">QII", 1 << 40, 8192, 1) + bytes(64),
            "bitshuffle: it claims to decode to",
        ),
        (32013, (1, 0x7A667005, 0xF0FFFFFF, 0xFFFF0F00), bytes(64), "zfp: it claims to decode to"),
        (32013, (1, 0x05706678, 0xF0FFFFFF, 0xFFFF0F00), bytes(64), "zfp: its parameters are not a zfp header"),
        (32013, (1, 0x0570667A, 0xFFFFFFF0, 0x000FFFFF), bytes(64), "zfp: it claims to decode to"),
        (32013, (1, 0x7A667005, 0xF0FFFFFF, 0x00000F00), bytes(64), "zfp: it claims to decode to"),
        (32013, (), bytes(64), "zfp: its parameters are incomplete"),
        (32017, (), zstd_claiming(1 << 40), "sz: it claims to decode to 1,099,511,627,776"),
        (32024, (), struct.pack("<Q", 1 << 40) + zstd_claiming(64), "sz3: it claims to decode to 1,099,511,627,776"),
        (32024, (), struct.pack("<Q", 64) + zstd_claiming(1 << 40), "sz3: it claims to decode to 1,099,511,627,776"),
        (3, (), b"\0\0\0", "fletcher32: the chunk is shorter than its checksum"),
        (1, (6,), zlib.compress(bytes(1 << 20)), "gzip goes on after 73728 bytes"),
    ],
)
def test_lengths_that_lead_out_of_the_input_are_refused(filter_id, values, stored, words):
    pipeline, bytes_stored = Pipeline(filters=(Filter(id=filter_id, values=values),)), np.frombuffer(stored, np.uint8)
    with pytest.raises(NotAskedError, match=f"^{words}"):
        pipeline.decode(bytes_stored, filter_mask=0, raw_nbytes=4096, scratch=DecodeScratch())


# --- structures -----------------------------------------------------------------------------------------------


def test_trees_of_groups_may_be_deep_and_lead_back_into_themselves(tmp_path):
    path = tmp_path / "deep.h5"
    with h5py.File(path, "w", libver="latest") as file:
        file["top"] = [1, 2, 3]
        group = file
        for _ in range(1500):
            group = group.create_group("g")
        group["x"] = [1, 2]
        group["up"] = file["/"]
        file["near/x"] = [1]
        file["near/up"] = file["/"]
    with h5py.File(path) as file:
        assert list(datasets_of(file)) == ["near/x", "top"]
    with pytest.raises(FieldNotFoundError, match="It has: near/x, top"):
        H5Dataset(path, "no")


def test_an_index_that_names_a_chunk_twice_is_refused(tmp_path):
    path = low_level(
        tmp_path / "a.h5",
        (64,),
        chunks=(16,),
        libver=(h5py.h5f.LIBVER_EARLIEST, h5py.h5f.LIBVER_LATEST),
        then=lambda d: d.write(h5py.h5s.ALL, h5py.h5s.ALL, np.arange(64, dtype="f4")),
    )
    data = Path(path).read_bytes()
    # A key of the tree: stored size, filter mask, and the chunk's first element; the second is made the first.
    key, twice = struct.pack("<IIQ", 64, 0, 16), struct.pack("<IIQ", 64, 0, 0)
    assert data.count(key) == 1
    Path(path).write_bytes(data.replace(key, twice))
    with pytest.raises(SourceError, match="names a chunk twice, so it is damaged"):
        H5Dataset(path, "x")


def test_a_member_without_a_name_is_a_clear_error(tmp_path):
    path = tmp_path / "a.h5"
    write_datasets(path, x=np.zeros(4, dtype=[("first", "f4"), ("qqqq", "i4")]))
    data = path.read_bytes()
    assert data.count(b"qqqq") == 1
    path.write_bytes(data.replace(b"qqqq", bytes(4)))
    with pytest.raises(CorruptChunkError, match="No member name"):
        H5Dataset(path)[:]


# --- names ----------------------------------------------------------------------------------------------------

NASTY = "\x1b[2J\x1b]0;owned\x07[bold]name[/]\r\n\u202etfel"


@pytest.fixture
def nasty(tmp_path):
    compound = np.zeros(3, dtype=[("\x1b[31mred", "f4"), ("b[/red]", "i4")])
    held = {NASTY.replace("/", "|"): np.zeros((3, 2)), "x": np.zeros(4), "compound": compound}
    return write_datasets(tmp_path / "a.h5", **held)


@pytest.mark.parametrize("arguments", [["inspect"], ["inspect", "--all"], ["inspect", "--json"], ["suggest"]])
def test_names_in_a_file_never_reach_the_terminal_as_escape_sequences(nasty, arguments, monkeypatch):
    guards_are_forks(monkeypatch)
    result = CliRunner().invoke(app, [*arguments, nasty])
    assert "\x1b" not in result.output
    assert "\x07" not in result.output
    assert "\u202e" not in result.output
    assert result.exception is None or isinstance(result.exception, (h5stream.H5StreamError, SystemExit))


def test_names_in_messages_are_shown_without_their_control_characters(nasty):
    with pytest.raises(FieldNotFoundError) as caught:
        H5Dataset(nasty, "no")
    assert "\x1b" not in str(caught.value)
    with pytest.raises(FieldNotFoundError) as caught:
        H5Dataset(nasty, "compound:no")
    assert "\x1b" not in str(caught.value)


@pytest.fixture
def latin(tmp_path):
    """A file with a dataset whose name is not UTF-8, as other programs write them, and one in a group that is not."""
    with h5py.File(tmp_path / "latin.h5", "w") as file:
        file["x"] = np.arange(4)
        space = h5py.h5s.create_simple((4,))
        h5py.h5d.create(file.id, b"caf\xe9", h5py.h5t.NATIVE_INT32, space)
        h5py.h5d.create(h5py.h5g.create(file.id, b"gr\xfc\xdfe"), b"y", h5py.h5t.NATIVE_INT32, space)
    return str(tmp_path / "latin.h5")


def test_a_name_that_is_not_utf8_hides_no_other_dataset(latin):
    assert H5Dataset(latin, "x")[:].tolist() == [0, 1, 2, 3]
    assert [entry.path for entry in list_file(latin).entries] == ["x"]
    with pytest.raises(FieldNotFoundError, match="It has: x"):
        H5Dataset(latin, "no")


def test_a_dataset_whose_name_is_not_utf8_is_not_left_out_in_silence(latin):
    with pytest.raises(UnsupportedFieldError, match=r"named b'caf\\xe9' at its root.*name the others"):
        H5Dataset(latin)


# --- code -----------------------------------------------------------------------------------------------------

EXECUTES = {"eval", "exec", "compile", "__import__"}
UNPICKLES = {("pickle", "load"), ("pickle", "loads"), ("marshal", "loads"), ("torch", "load"), ("shelve", "open")}


def test_nothing_that_is_read_is_ever_executed_or_unpickled():
    """Manifests and states are plain data, read as JSON or not at all.

    The two processes of one loader talk in pickles, over a socket that nobody else has; nothing of a file goes there
    but bytes and numbers.
    """
    package = Path(h5stream.__file__).parent
    for path in package.rglob("*.py"):
        if path.is_relative_to(package / "workers") or path == package / "advice" / "program.py":
            continue  # the latter's own test is below
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            what = node.func
            assert not (isinstance(what, ast.Name) and what.id in EXECUTES), f"{path}:{node.lineno}"
            if isinstance(what, ast.Attribute) and isinstance(what.value, ast.Name):
                assert (what.value.id, what.attr) not in UNPICKLES, f"{path}:{node.lineno}"
            assert not any(k.arg == "allow_pickle" for k in node.keywords), f"{path}:{node.lineno}"


@pytest.mark.parametrize(
    "line",
    [
        "x = __import__('os').system('true')",
        "x = open('a.h5', 'w')",
        "x = h5py.File('a.h5', 'w')",
        "x = h5py.File(name)",
        "x = h5py.File; x('a.h5', 'w')",
        "x = ().__class__",
        "x = h5py.os",
        "import os",
        "sorted = set",
        "loader = eval('1')",
    ],
)
def test_a_program_that_does_more_than_list_names_is_not_run(tmp_path, monkeypatch, line):
    monkeypatch.chdir(tmp_path)
    write_datasets("a.h5", x=np.arange(3))
    program = (
        "import h5py",
        'with h5py.File("a.h5") as f:',
        "    names = sorted(f)",
        'loader = H5StreamLoader("a.h5")',
    )
    assert tried(program)[:2] == ("", 3)
    assert tried((line, *program))[0] == "it does more than open files and list names"
    with h5py.File("a.h5") as file:
        assert [*file] == ["x"]


@pytest.mark.parametrize("name", ['"', "'", "\\", '\\"', "a\n", "\u2028", '"]; print(1); ["', "{x}", "\r"])
def test_names_of_a_file_are_text_in_the_programs_that_are_run(tmp_path, name):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for k in range(3):
            file[f"{name}/{k}/{name}"] = file[f"{name}/{k}/y"] = np.arange(9)
    kinds = inspect_file(str(tmp_path / "a.h5")).to_dict()["kinds"]
    programs = [kind["lines"] for kind in kinds if kind["lines"]]
    assert programs
    for program in programs:
        nodes = [*ast.walk(ast.parse("\n".join(program)))]
        assert any(name in str(one.value) for one in nodes if isinstance(one, ast.Constant))


# --- the odd files --------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.corpus
@pytest.mark.skipif(not ODD, reason=f"the corpus of real files is not at {CORPUS} (H5STREAM_CORPUS names another)")
def test_every_odd_file_of_the_corpus_is_touched_in_bounds(reader):
    bad = []
    for path in ODD:
        outcome, detail = reader.outcome(str(path), "touch")
        if outcome not in (ERROR, EQUAL):
            bad.append(f"{path}: {outcome} {detail[-600:]}")
    assert not bad, "\n".join(bad)
