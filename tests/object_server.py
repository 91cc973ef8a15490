"""The benchmarks' store of objects in a thread of the tests' process, at no distance, told to fail by a function."""

import asyncio
import math
import queue
import threading

from bench.object_server import Distance, Server


class ObjectServer(Server):
    """Serves the files of a folder at `url`; `asked` lists the requests, and `fault` says what becomes of each."""

    def __init__(self, folder, port=0):
        super().__init__(folder, Distance(latency_ms=0, connection_mb_s=math.inf, total_mb_s=math.inf))
        begun = queue.SimpleQueue()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._run(begun, port)), name="object-server", daemon=True
        )
        self._thread.start()
        self._loop, self._ended, port = begun.get()
        self.url = f"http://127.0.0.1:{port}"

    async def _run(self, begun, port):
        server, ended = await asyncio.start_server(self.serve, "127.0.0.1", port), asyncio.Event()
        begun.put((asyncio.get_running_loop(), ended, server.sockets[0].getsockname()[1]))
        await ended.wait()
        server.close()  # what is being answered is cancelled when the loop ends

    def close(self):
        """End what is being answered, and the server."""
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join()
