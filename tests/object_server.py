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
        begun, self._connections = queue.SimpleQueue(), {}
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._run(begun, port, tls)), name="object-server", daemon=True
        )
        self._thread.start()
        self._loop, self._ended, port = begun.get()
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{port}"

    async def serve(self, reader, writer):
        """Answer the requests of a connection until it is closed, also at the other end."""
        self._connections[writer] = asyncio.current_task()
        try:
            await super().serve(reader, writer)
            with contextlib.suppress(OSError):
                await writer.wait_closed()
        finally:
            del self._connections[writer]

    async def _run(self, begun, port, tls):
        server, ended = await asyncio.start_server(self.serve, "127.0.0.1", port, ssl=tls), asyncio.Event()
        begun.put((asyncio.get_running_loop(), ended, server.sockets[0].getsockname()[1]))
        await ended.wait()
        server.close()
        await asyncio.sleep(0)  # those that were just accepted begin
        connections = dict(self._connections)
        for writer, task in connections.items():
            writer.transport.abort()  # what waits to be sent would keep it open
            task.cancel()
        closed = (writer.wait_closed() for writer in connections)
        await asyncio.gather(*closed, *connections.values(), return_exceptions=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """End what is being answered, and the server."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._ended.set)
            self._thread.join()
