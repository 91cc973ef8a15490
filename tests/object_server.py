"""A server of objects over HTTP, with ranges and ETags, that can be told to fail."""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import re
import threading


class ObjectServer:
    """Serves the files of a folder at `url`; `asked` lists the requests, and `fault` says what becomes of each.

    `fault(number, request)` gives None, a status, "short" (half of the body), "stall" (no body until `close`).
    """

    def __init__(self, folder):
        self.folder, self.asked, self.fault, self.ended = folder, [], None, threading.Event()
        self.tag = '"{}"'  # the form of an ETag
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, name="object-server", daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def close(self):
        self.ended.set()
        self._server.shutdown()
        self._server.server_close()

    def _handler(self):
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_HEAD(self):
                with contextlib.suppress(OSError):
                    server.answer(self, with_body=False)

            def do_GET(self):
                with contextlib.suppress(OSError):
                    server.answer(self, with_body=True)

        return Handler

    def answer(self, request, *, with_body):
        """Answer a request."""
        self.asked.append((request.command, request.path, request.headers.get("Range")))
        fault = self.fault and self.fault(len(self.asked), self.asked[-1])
        path = self.folder / request.path.lstrip("/")
        if isinstance(fault, int) or not path.is_file():
            return self._say(request, fault or 404, b"", {})
        content = path.read_bytes()
        tag = self.tag.format(hashlib.sha256(content).hexdigest()[:16])
        if request.headers.get("If-Match", tag) != tag:
            return self._say(request, 412, b"", {})
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers.get("Range") or "")
        facts, part = {"ETag": tag, "Accept-Ranges": "bytes"}, content
        if asked:
            first, last = int(asked[1]), min(int(asked[2]), len(content) - 1)
            part, facts["Content-Range"] = content[first : last + 1], f"bytes {first}-{last}/{len(content)}"
        return self._say(request, 206 if asked else 200, part, facts, with_body=with_body, fault=fault)

    def _say(self, request, status, body, facts, *, with_body=False, fault=None):
        request.send_response(status)
        for name, value in {**facts, "Content-Length": len(body)}.items():
            request.send_header(name, str(value))
        request.end_headers()
        if fault == "stall" and with_body:
            self.ended.wait(60)
        elif with_body:
            request.wfile.write(body[: len(body) // 2] if fault == "short" else body)
        if fault:
            request.close_connection = True
            request.wfile.flush()
            request.connection.close()
