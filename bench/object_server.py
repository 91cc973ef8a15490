"""A store of objects in a folder, as far away as one likes: ``python -m bench.object_server FOLDER --latency-ms 20``.

It speaks HTTP with ranges and ETags, and as much of S3 as clients need to read and list (the first name of a path is
the bucket, and nobody is asked for credentials). ``GET /-/counts`` gives the requests and bytes since the last one.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import email.utils
import gzip
import json
import os
import random
import re
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from xml.sax.saxutils import escape

PIECE_NBYTES = 64 * 1024
"""Bytes that are sent at once."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Distance:
    """How far away the store is."""

    latency_ms: float = 20.0  # until the first byte of an answer
    jitter: float = 0.25  # of the latency, either way
    connection_mb_s: float = 60.0  # bytes of one connection
    total_mb_s: float = 1000.0  # bytes of all
    fault_share: float = 0.0  # of the requests, which fail in one of `FAULTS`


FAULTS = (503, 429, "short", "reset", "stall")
MISTAKES = ("whole", "elsewhere", "gzip")
"""What servers do wrong each time: all of a file for a range, other bytes, compressed ones."""


class Server:
    """Answers requests, each connection in a task of its own; `asked` lists them."""

    has_tags = True  # whether objects have ETags, and dates
    has_dates = False  # whether they have dates alone, if not
    tag = '"{}"'  # the form of an ETag
    heeds_tags = True  # whether If-Match is heeded

    def __init__(self, folder: Path, distance: Distance) -> None:
        self.folder, self.distance, self.drawn = folder, distance, random.Random(0)
        self.asked: list[tuple[str, str, str | None]] = []
        self.requests = self.nbytes = self.together = self.most_together = 0
        self.free_at = 0.0  # when all that was asked of the line so far has passed

    def fault(self, number: int, request: tuple[str, str, str | None]) -> int | str | None:
        """Say what becomes of a request: a status, one of `FAULTS` or `MISTAKES`, or None where nothing goes wrong."""
        return self.drawn.choice(FAULTS) if self.drawn.random() < self.distance.fault_share else None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of a connection until it is closed."""
        ends = ConnectionError, FileNotFoundError, asyncio.IncompleteReadError, asyncio.CancelledError
        with contextlib.suppress(*ends), contextlib.closing(writer):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                method, target, *_ = head.split(" ", 2)
                fields = {name.lower(): value.strip() for name, _, value in
                          (line.partition(":") for line in head.split("\r\n")[1:])}  # fmt: skip
                if not await self.answer(method, urllib.parse.urlsplit(target), fields, writer):
                    break

    async def answer(self, method: str, url: urllib.parse.SplitResult, fields: dict[str, str], writer) -> bool:
        """Answer a request; tell whether the connection goes on."""
        if url.path == "/-/counts":
            said = json.dumps({"requests": self.requests, "nbytes": self.nbytes}).encode()
            self.requests = self.nbytes = 0
            return await self.send(writer, 200, {}, said)
        self.requests += 1
        request = method, url.path, fields.get("range")
        self.asked.append(request)
        number = len(self.asked)
        away = self.distance
        self.together += 1
        self.most_together = max(self.most_together, self.together)
        await asyncio.sleep(away.latency_ms / 1000 * self.drawn.uniform(1 - away.jitter, 1 + away.jitter))
        self.together -= 1
        fault = self.fault and self.fault(number, request)
        if isinstance(fault, int):
            return await self.send(writer, fault, {}, b"")
        query = urllib.parse.parse_qs(url.query)
        if "list-type" in query:
            return await self.send(writer, 200, {}, self.listed(url.path.strip("/"), query.get("prefix", [""])[0]))
        path = self.folder / urllib.parse.unquote(url.path.lstrip("/"))
        if not path.is_file():
            return await self.send(writer, 404, {}, b"")
        about = path.stat()
        tag = self.tag.format(f"{about.st_size:x}-{about.st_mtime_ns:x}")
        wanted = fields.get("if-match", tag)
        if self.heeds_tags and (
            wanted != tag or ("if-match" in fields and wanted.startswith("W/"))
        ):  # RFC 9110, 13.1.1
            return await self.send(writer, 412, {}, b"")
        facts = {"Accept-Ranges": "bytes"}
        if self.has_tags:
            facts["ETag"] = tag
        if self.has_tags or self.has_dates:
            facts["Last-Modified"] = email.utils.formatdate(about.st_mtime, usegmt=True)
        first, last, status = 0, about.st_size - 1, 200
        asked = re.fullmatch(r"bytes=(\d*)-(\d*)", fields.get("range", ""))
        if asked and method == "GET":
            first = int(asked[1]) if asked[1] else about.st_size - int(asked[2])
            last, status = min(last, int(asked[2])) if asked[1] and asked[2] else last, 206
            if first > last:
                return await self.send(writer, 416, {"Content-Range": f"bytes */{about.st_size}"}, b"")
            facts["Content-Range"] = f"bytes {first}-{last}/{about.st_size}"
            if fault == "whole":
                first, last, status = 0, about.st_size - 1, 200
            elif fault == "elsewhere":
                facts["Content-Range"] = f"bytes {first + 1}-{last + 1}/{about.st_size}"
            elif fault == "gzip":
                body = gzip.compress(path.read_bytes()[first : last + 1])
                return await self.send(writer, 206, facts | {"Content-Encoding": "gzip"}, body)
        return await self.send_file(writer, status, facts, path, first, last + 1 - first, method == "GET", fault)

    def listed(self, bucket: str, prefix: str) -> bytes:
        """Return a bucket's list of objects, as S3 gives it."""
        root = self.folder / bucket
        found = sorted(one for one in root.rglob("*") if one.is_file())
        names = [(str(one.relative_to(root)), one.stat()) for one in found]
        each = "".join(
            f"<Contents><Key>{escape(name)}</Key><Size>{about.st_size}</Size><ETag>&quot;{about.st_size:x}-"
            f"{about.st_mtime_ns:x}&quot;</ETag><LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
            for name, about in names if name.startswith(prefix)
        )  # fmt: skip
        return (
            f"<ListBucketResult><Name>{bucket}</Name><IsTruncated>false</IsTruncated>{each}</ListBucketResult>".encode()
        )

    async def send(self, writer, status: int, facts: dict[str, str], body: bytes) -> bool:
        """Send a short answer."""
        self.begin(writer, status, facts, len(body))
        writer.write(body)
        await writer.drain()
        return True

    def begin(self, writer, status: int, facts: dict[str, str], nbytes: int) -> None:
        """Send the head of an answer."""
        lines = "".join(f"{name}: {value}\r\n" for name, value in {**facts, "Content-Length": str(nbytes)}.items())
        writer.write(f"HTTP/1.1 {status} {'OK' if status < 300 else 'No'}\r\n{lines}\r\n".encode())

    async def send_file(self, writer, status, facts, path, first, nbytes, with_body, fault) -> bool:
        """Send a range of a file, as fast as the line is."""
        self.begin(writer, status, facts, nbytes)
        if not with_body:
            await writer.drain()
            return True
        away, loop, left = (
            self.distance,
            asyncio.get_running_loop(),
            nbytes // 2 if fault in ("short", "reset") else nbytes,
        )
        if fault == "stall":
            await writer.drain()
            await asyncio.sleep(3600)
        ours = loop.time()
        with path.open("rb", buffering=0) as file:
            while left > 0:
                piece = os.pread(file.fileno(), min(PIECE_NBYTES, left), first)
                if not piece:  # it has become shorter
                    return False
                first, left = first + len(piece), left - len(piece)
                ours += len(piece) / (away.connection_mb_s * 1e6)
                self.free_at = max(self.free_at, loop.time() - 0.01) + len(piece) / (away.total_mb_s * 1e6)
                self.nbytes += len(piece)
                writer.write(piece)
                await writer.drain()
                wait = max(ours, self.free_at) - loop.time()
                if wait > 0.002:  # timers are no finer
                    await asyncio.sleep(wait)
        if fault == "reset":
            writer.transport.abort()
        return not fault


@contextlib.contextmanager
def store_of(folder: Path, distance: Distance) -> Iterator[str]:
    """Serve a folder from another process; give its address."""
    options = [f"--{name.replace('_', '-')}={value}" for name, value in dataclasses.asdict(distance).items()]
    command = [sys.executable, "-m", "bench.object_server", str(folder), *options]
    root = Path(__file__).resolve().parent.parent
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root)
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


def counts(url: str) -> dict[str, int]:
    """Return the requests and bytes of a store since this was asked last."""
    with urllib.request.urlopen(f"{url}/-/counts") as said:
        return json.load(said)


async def _main(folder: Path, distance: Distance) -> None:
    server = await asyncio.start_server(Server(folder, distance).serve, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    for one in dataclasses.fields(Distance):
        parser.add_argument(f"--{one.name.replace('_', '-')}", type=float, default=one.default)
    given = vars(parser.parse_args())
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_main(given.pop("folder"), Distance(**given)))
