"""Commands over addresses of objects in stores: what they print, and how they end."""

import json
import re

import h5py
import pytest
from support.making import make_file

from h5stream import H5StreamLoader

pytest.importorskip("obstore")


@pytest.fixture(autouse=True)
def quick_guard():
    """Let processes be new interpreters: what has read a store cannot be forked."""


@pytest.fixture
def folder(here):
    return here


# What is typed, with a1.h5 and a2.h5 for their addresses, and what is on the screen.
COMMANDS = {
    "inspect": (["a1.h5"], ["4,000 rows", "2 datasets, opened with ", "requests, ", "KiB", 'a1.h5",\n']),
    "doctor": (["a1.h5"], ["HDF5, ", "2 datasets", "every read crosses a network", "/h5stream:", "0 fail"]),
    "statistics": (["a1.h5", "a2.h5"], ["8,000 samples"]),
    "bench": (
        ["a1.h5", "a2.h5", "--seconds", "0.5", "--batch-size", "200", "--workers", "1"],
        ["2 files: 8,000 rows", "in a store", "\nnaive ", "of 8,000 rows came once, with h5py's bytes"],
    ),
    "diagnose": (["a1.h5", "--step-ms", "1", "--seconds", "0.1", "--batch-size", "200"], ["Diagnosis: "]),
    "tune": (["a1.h5", "--seconds", "0.05", "--batch-size", "200", "--out", "p.toml"], ["Tuning: ", "p.toml"]),
    "suggest": (["a1.h5", "--batch-size", "200"], ["window of 4000 rows"]),
    "stage": (["a1.h5", "a2.h5", "--to", "fast"], ["/fast/a1.h5", "/fast/a2.h5", "2 copied ("]),
    "repack": (["a1.h5", "b.h5", "--compress", "lz4"], ["all verified against", "rows/s (", "hdf5plugin"]),
}


def typed(server, words):
    return [f"{server.url}/{word}" if word in ("a1.h5", "a2.h5") else word for word in words]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_reads_objects_and_its_screen_fits(server, h5stream, command):
    words, shown = COMMANDS[command]
    ended = h5stream(command, *typed(server, words))
    assert (ended.status, [word for word in shown if word not in ended.text]) == (0, []), ended.text
    assert [line for line in ended.out.splitlines() if len(line) > 80 and "/" not in line] == []
    if command == "tune":
        with H5StreamLoader.from_profile("p.toml") as loader:
            assert [file.path for file in loader.dataset.layout.files] == [f"{server.url}/a1.h5"]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_says_that_there_is_no_object(server, h5stream, command):
    words, _ = COMMANDS[command]
    gone = [f"{server.url}/none.h5" if word == f"{server.url}/a1.h5" else word for word in typed(server, words)]
    ended = h5stream(command, *gone, width=200)
    assert (ended.status, ended.out) == (2, "")
    assert f"error: there is no object '{server.url}/none.h5'" in ended.err


def test_statistics_are_found_again_by_the_address(server, h5stream, here, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(here / "cache"))
    address = f"{server.url}/a1.h5"
    first = h5stream("statistics", address, "--json")
    server.asked.clear()
    assert h5stream("statistics", address, "--json").out == first.out
    assert json.loads(first.out)["y"]["max"] == 9
    assert "statistics" in h5stream("inspect", address, "--catalogue").out


def test_inspect_names_a_local_file_to_rewrite_an_object_to(server, h5stream):
    make_file("tiny.h5", shape=(4000, 8), dtype="f4", chunks=(1, 8), compression="gzip")
    (found,) = json.loads(h5stream("inspect", f"{server.url}/tiny.h5", "--json").out)
    assert found["repack_command"].startswith(f"h5stream repack {server.url}/tiny.h5 tiny.repacked.h5 ")
    assert found["file_nbytes"] == (server.folder / "tiny.h5").stat().st_size
    assert found["asked"]["requests"] > 1
    assert found["asked"]["nbytes"] > 8


def test_inspect_names_the_cache_where_epochs_request_data_again(server, h5stream):
    with h5py.File("large.h5", "w") as file:
        file.create_dataset("x", (4000, 1200), "f4", chunks=(100, 1200), compression="gzip")[0] = 1
    said = h5stream("inspect", f"{server.url}/large.h5", width=200).out
    assert "from the store again; H5Dataset(..., cache=)" in said


def test_public_buckets_are_read_without_credentials(server, h5stream, here, monkeypatch):
    for whose in ("AWS", "GOOGLE", "AZURE"):
        monkeypatch.setenv(f"{whose}_SKIP_SIGNATURE", "false")
    for name, value in {"ENDPOINT_URL": server.url, "ALLOW_HTTP": "true", "REGION": "us-east-1"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    (here / "a-public-bucket").mkdir()
    (here / "a1.h5").rename(here / "a-public-bucket/a.h5")
    ended = h5stream("stage", "s3://a-public-bucket/a.h5", "--to", "fast", "--anonymous")
    assert ended.status == 0, ended.text
    assert (here / "fast/a.h5").read_bytes() == (here / "a-public-bucket/a.h5").read_bytes()
    shown = json.loads(h5stream("inspect", "s3://a-public-bucket/a.h5", "--anonymous", "--json").out)
    program = "\n".join(shown[0]["lines"])
    exec(program, found := {})
    assert 'storage_options={"skip_signature": True}' in program
    assert len(found["loader"].dataset) == 4000
    said = h5stream("doctor", "s3://a-public-bucket/a.h5", "--anonymous", width=200).out
    assert re.search(r"h5stream stage s3://a-public-bucket/a.h5 --to \S+/h5stream --anonymous", said)
    listed = h5stream("stage", "--list", "fast").out.split("\t")
    assert (listed[2], listed[5].split("\n")[0]) == ("in a store", "s3://a-public-bucket/a.h5")


def test_stores_are_only_read(server, h5stream):
    ended = h5stream("stage", f"{server.url}/a1.h5", "--to", "s3://bucket/copies", width=200)
    assert ended.status == 2
    assert "stores are only read" in ended.err
    ended = h5stream("repack", f"{server.url}/a1.h5", "s3://bucket/b.h5", width=200)
    assert "'s3://bucket/b.h5' is in a store" in ended.err
    assert "name a local file" in ended.err
