"""The benchmarks' store of objects in a thread of the tests' process, at no distance, told to fail by a function."""

import asyncio
import contextlib
import math
import queue
import threading

from bench.object_server import Distance, Server


class ObjectServer(Server):
    """Serves the files of a folder at `url`; `asked` lists the requests, and `fault` says what becomes of each.

    When it is closed its connections are, and its thread has ended: nothing is left for the garbage collector.
    """

    def __init__(self, folder, port=0, tls=None):
        super().__init__(folder, Distance(latency_ms=0, connection_mb_s=math.inf, total_mb_s=math.inf))
        begun, self._tls, self._connections = queue.SimpleQueue(), tls, set()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._run(begun, port)), name="object-server", daemon=True
        )
        self._thread.start()
        self._loop, self._ended, port = begun.get()
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{port}"

    async def serve(self, reader, writer):
        """Answer the requests of a connection until it is closed, also at the other end."""
        if self._tls and not await self._shake_hands(writer):
            return
        self._connections.add(writer)
        try:
            await super().serve(reader, writer)
            with contextlib.suppress(OSError):
                await writer.wait_closed()
        finally:
            self._connections.remove(writer)

    async def _shake_hands(self, writer):
        """Begin TLS here, since nobody could end a handshake of the listening socket; return whether it began."""
        try:
            await writer.start_tls(self._tls)
        except (OSError, asyncio.CancelledError):  # the other end broke it off, or the server ends
            return False
        return True

    async def _run(self, begun, port):
        server, ended = await asyncio.start_server(self.serve, "127.0.0.1", port), asyncio.Event()
        begun.put((asyncio.get_running_loop(), ended, server.sockets[0].getsockname()[1]))
        await ended.wait()
        for _ in range(5):  # connections that wait are accepted, and begin: with `close` they would be lost half made
            await asyncio.sleep(0)
        server.close()
        # A connection is served or in a handshake; each task may be followed by another.
        while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
            writers = tuple(self._connections)
            for task in tasks:
                task.cancel()
            for writer in writers:
                writer.transport.abort()  # what waits to be sent would keep it open
            await asyncio.gather(*tasks, *(writer.wait_closed() for writer in writers), return_exceptions=True)
            await asyncio.sleep(0)  # sockets are closed

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """End what is being answered, and the server."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._ended.set)
            self._thread.join()
