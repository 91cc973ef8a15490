"""Servers as people run them, each a process of its own on 127.0.0.1: S3 (moto) and a web server (nginx).

Their sockets listen before they start, so that nobody waits for them to be ready.
"""

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
import sys

import pytest

MOTO = """
import sys
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server
app = DomainDispatcherApplication(create_backend_app)
make_server("127.0.0.1", 0, app, threaded=True, fd=int(sys.argv[1])).serve_forever()
"""

HTTP = {"client_options": {"allow_http": True}}
"""Options that reach a server without TLS."""

NGINX = """
daemon off; pid {own}/pid; user {user}; worker_processes 1;
events {{ }}
http {{
  access_log off;
  client_body_temp_path {own}/a; proxy_temp_path {own}/b; fastcgi_temp_path {own}/c; uwsgi_temp_path {own}/d;
  scgi_temp_path {own}/e;
  server {{ listen 127.0.0.1:{port}; root {folder}; }}
}}
"""


@contextlib.contextmanager
def _running(command, **environment):
    """Run a server that takes its socket from us."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port, number = listening.getsockname()[1], listening.fileno()
        process = subprocess.Popen(
            command(port, number),
            pass_fds=[number],
            env=os.environ | {name: value.format(number) for name, value in environment.items()},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


@contextlib.contextmanager
def s3(folder, monkeypatch):
    """Give the address of a bucket with a folder's files; the environment says how it is read."""
    for name in ("moto", "flask_cors"):
        pytest.importorskip(name, reason="needs moto")
    from obstore.store import S3Store

    with _running(lambda _, number: [sys.executable, "-c", MOTO, str(number)]) as url:
        for name, value in {
            "ACCESS_KEY_ID": "key",
            "SECRET_ACCESS_KEY": "secret",
            "REGION": "us-east-1",
            "ENDPOINT_URL": url,
        }.items():
            monkeypatch.setenv(f"AWS_{name}", value)
        import requests  # of moto's

        bucket = f"bucket-{url.rpartition(':')[2]}"
        requests.put(f"{url}/{bucket}", timeout=60).raise_for_status()
        for path in folder.iterdir():
            S3Store(bucket, client_options=HTTP["client_options"]).put(path.name, path)
        yield f"s3://{bucket}"


@contextlib.contextmanager
def web(folder, own):
    """Give the address of a folder that nginx serves."""
    if shutil.which("nginx") is None:
        pytest.skip("needs nginx")

    def command(port, _):
        (own / "nginx.conf").write_text(NGINX.format(own=own, port=port, folder=folder, user=getpass.getuser()))
        return ["nginx", "-e", "stderr", "-p", str(own), "-c", str(own / "nginx.conf")]

    with _running(command, NGINX="{};") as url:
        yield url
