"""A server of another make, on a port, with the answers of a test."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = Callable[[int], tuple[int, str]]  # of the n-th request: status and body


def stream(*events: object) -> str:
    return "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"


TEXT = {"choices": [{"delta": {"content": "a"}}]}
ANSWER = stream(TEXT, {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}})


@contextmanager
def other_server(reply: Reply, model: str = "other", requests: list[tuple[str, Any]] | None = None) -> Iterator[str]:
    """Run a server and yield its URL. `requests` receives the path and the body of each request, None without one."""
    numbers, seen = iter(range(10**9)), [] if requests is None else requests

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            seen.append((self.path, None))
            models = json.dumps({"data": [{"id": model}]})
            self.answer(200, models) if self.path == "/v1/models" else self.answer(404, "")

        def do_POST(self) -> None:
            seen.append((self.path, json.loads(self.rfile.read(int(self.headers["content-length"])))))
            self.answer(*reply(next(numbers)))

        def answer(self, status: int, text: str) -> None:
            self.send_response(status)
            self.send_header("content-length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
