"""A Hugging Face of its own: the endpoints that downloads use, with the files of one directory."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

from .published import COMMIT


@contextmanager
def served_hub(repository: str, directory: Path) -> Iterator[tuple[str, list[str]]]:
    """Its URL, and the names of the files that were sent, in order. Other repositories do not exist."""
    sent: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *arguments: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path.startswith(f"/api/models/{repository}/tree/"):
                files = [
                    {"type": "file", "path": each.name, "size": each.stat().st_size, "oid": "0" * 40}
                    for each in sorted(directory.iterdir())
                ]
                return self._send(200, json.dumps(files).encode())
            if path.startswith(f"/api/models/{repository}"):
                siblings = [{"rfilename": each.name} for each in sorted(directory.iterdir())]
                return self._send(200, json.dumps({"id": repository, "sha": COMMIT, "siblings": siblings}).encode())
            name = path.removeprefix(f"/{repository}/resolve/{COMMIT}/")
            if name == path or not (directory / name).is_file():
                return self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"})
            data = (directory / name).read_bytes()
            if self.command == "GET":
                sent.append(name)
            etag = hashlib.sha256(data).hexdigest()
            return self._send(200, data, {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT})

        def _send(self, status: int, data: bytes, headers: dict[str, str] | None = None) -> None:
            self.send_response(status)
            for name, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", sent
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
