"""Servers of other makes, on a port, that answer as a test says."""

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
def other_server(reply: Reply, model: str = "other") -> Iterator[str]:
    asked = iter(range(10**9))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            models = json.dumps({"data": [{"id": model}]})
            self.answer(200, models) if self.path == "/v1/models" else self.answer(404, "")

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.answer(*reply(next(asked)))

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
