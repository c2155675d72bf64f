"""Ray Serve with two replicas of the embedded model: answers, a lost replica, updates, load that comes and goes."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from ..support.servers import PARIS, TOM, Server, slow_body
from .ray_cluster import Cluster, ray_cluster, ray_program
from .tools import run

CHAT = "/v1/chat/completions"
OPTIONS = [
    {"temperature": 0},
    {"temperature": 0, "decoder": "llada", "max_tokens": 32},
    {"temperature": 0.8, "seed": 7},
    {"temperature": 1.0, "seed": 8, "n": 2, "max_tokens": 40},
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """The shipped file's two replicas, on one core each."""
    with ray_cluster(cpus=3) as cluster:
        cluster.deploy({})
        both_ready(cluster)
        yield cluster


def both_ready(cluster: Cluster) -> None:
    cluster.wait_for(lambda: list(cluster.values("engine_up").values()) == [1, 1])


def whole(url: str, body: dict[str, Any]) -> list[str]:
    answer = httpx.post(f"{url}{CHAT}", json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    return [choice["message"]["content"] for choice in answer.json()["choices"]]


@dataclass
class Stream:
    """A streamed answer: the text of each choice, and how it ended."""

    texts: dict[int, str] = field(default_factory=dict)
    done: bool = False
    error: dict[str, Any] | None = None
    begun: threading.Event = field(default_factory=threading.Event)

    def read(self, url: str, body: dict[str, Any]) -> Stream:
        with httpx.stream("POST", f"{url}{CHAT}", json={**body, "stream": True}, timeout=180) as answer:
            assert answer.status_code == 200
            assert answer.headers["content-type"].startswith("text/event-stream")
            for line in answer.iter_lines():
                if not line.startswith("data: "):
                    continue
                self.done = line == "data: [DONE]"
                event = {} if self.done else json.loads(line[6:])
                self.error = event.get("error", self.error)
                for choice in event.get("choices", ()):
                    text = choice["delta"].get("content") or ""
                    self.texts[choice["index"]] = self.texts.get(choice["index"], "") + text
                    if text:
                        self.begun.set()
        return self


def streams(pool: ThreadPoolExecutor, url: str, bodies: Sequence[dict[str, Any]]) -> list[Any]:
    return [pool.submit(Stream().read, url, body) for body in bodies]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_answers_are_a_plain_server_s(cluster: Cluster, server: Server, options: dict[str, Any]) -> None:
    for question in (PARIS, TOM):
        body = {"model": "tiny-llada", "messages": [{"role": "user", "content": question}], **options}
        wanted = whole(server.url, body)
        with ThreadPoolExecutor(4) as pool:  # on both replicas
            assert list(pool.map(whole, [cluster.url] * 4, [body] * 4)) == [wanted] * 4
            for stream in streams(pool, cluster.url, [body] * 4):
                assert list(stream.result().texts.values()) == wanted
                assert stream.result().done


def test_both_replicas_get_requests_and_one_page_has_the_metrics_of_both(cluster: Cluster) -> None:
    before = cluster.values("forwards_total")
    assert len(before) == 2
    body = {"model": "tiny-llada", "messages": [{"role": "user", "content": PARIS}]}

    def both_worked() -> bool:  # the proxy chooses by chance, so a few requests may all go to one
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(whole, [cluster.url] * 8, [body] * 8))
        after = cluster.values("forwards_total")
        return all(after[name] > before[name] for name in before)

    cluster.wait_for(both_worked)


def test_errors_and_headers_are_the_server_s(cluster: Cluster, server: Server) -> None:
    for body in ({"model": "none", "messages": []}, {"model": "tiny-llada", "messages": 3}, {"temperature": -1}):
        ours, plain = (httpx.post(f"{url}{CHAT}", json=body, timeout=30) for url in (cluster.url, server.url))
        assert (ours.status_code, ours.json()) == (plain.status_code, plain.json())
    for path in ("/v1/models", "/", "/openapi.json"):
        ours, plain = (httpx.get(f"{url}{path}", timeout=30) for url in (cluster.url, server.url))
        assert ours.status_code == plain.status_code == 200
        assert ours.headers["content-type"] == plain.headers["content-type"]
    given = httpx.get(f"{cluster.url}/version", headers={"x-request-id": "mine"}, timeout=30)
    assert given.headers.get_list("x-request-id") == ["mine"]


def test_events_come_while_an_answer_is_computed_and_a_client_that_leaves_ends_its_request(cluster: Cluster) -> None:
    def running() -> int:
        return int(sum(cluster.values("running_requests").values()))

    def begins_before_it_ends() -> bool:
        """An answer takes 400 forwards. On a machine that is busy a client may read late, but not each time."""
        with httpx.stream("POST", f"{cluster.url}{CHAT}", json=slow_body(stream=True), timeout=120) as answer:
            first = next(answer.iter_raw())
            return first.count(b"\n\n") < 40 and running() == 1

    cluster.wait_for(begins_before_it_ends)
    cluster.wait_for(lambda: not running(), 20)


def test_bad_arguments_end_serve_run_with_one_line(tmp_path: Any) -> None:
    for given, message in {
        "modle=tiny-llada": "modle is no argument: did you mean model?",
        "num_replicas=none": "num_replicas must be a whole number from 1 to 1048576, not 'none'",
        "api_key_file=/none": "--api-key-file: /none cannot be read: No such file or directory",
        "max_queue=0": "--max-queue must be from 1 to 2147483648, not 0",
        "port=8000": "port is for servers without Ray, whose proxies have http_options instead",
    }.items():
        done = run([ray_program("serve"), "run", "asynclane.deploy.ray:app", given])
        assert done.returncode == 2
        assert done.stderr.splitlines()[-1] == f"Error: {message}"
        assert "Traceback" not in done.stderr


def test_a_replica_that_is_killed_ends_its_own_streams_with_an_error_and_is_replaced(cluster: Cluster) -> None:
    before = cluster.replicas()
    assert len(before) == 2
    ends: list[Future[Stream]] = []
    with ThreadPoolExecutor(32) as pool:

        def both_work() -> bool:  # the proxy chooses by chance, so a few streams may all go to one
            reading = [Stream() for _ in range(6)]
            for one in reading:
                body = slow_body(seed=len(ends), max_tokens=200)
                ends.append(pool.submit(one.read, cluster.url, body))
            assert all(one.begun.wait(60) for one in reading)
            return all(cluster.values("running_requests").values())

        cluster.wait_for(both_work)
        os.kill(before[0], signal.SIGKILL)
        found = [end.result() for end in ends]
    lost = [one for one in found if one.error is not None]
    assert 1 <= len(lost) < len(found)
    assert all(one.error["code"] == "engine_down" and "lost" in one.error["message"] for one in lost if one.error)
    assert not [one for one in lost if one.done]
    assert all(one.done for one in found if one.error is None)
    cluster.wait_for(lambda: len(cluster.replicas()) == 2 and before[0] not in cluster.replicas())
    both_ready(cluster)


@contextmanager
def under_load(url: str, clients: int) -> Iterator[None]:
    """So many clients stream one answer after another while the block runs. Each must be complete."""
    stop = threading.Event()

    def stream_on(number: int) -> int:
        count = 0
        while not stop.is_set():
            stream = Stream().read(url, slow_body(seed=number, max_tokens=48))
            assert stream.done
            assert stream.error is None
            count += 1
        return count

    with ThreadPoolExecutor(clients) as pool:
        counts = [pool.submit(stream_on, number) for number in range(clients)]
        try:
            yield
        finally:
            stop.set()
        assert all(count.result() for count in counts)


def test_an_update_replaces_all_replicas_and_cuts_no_stream(cluster: Cluster) -> None:
    before = set(cluster.replicas())
    with under_load(cluster.url, 3):
        cluster.deploy({"max_queue": 128})
        cluster.wait_for(lambda: len(cluster.replicas()) == 2 and not before & set(cluster.replicas()))
    both_ready(cluster)


def test_replicas_come_with_the_load_and_go_after_it(cluster: Cluster) -> None:
    delays = {"upscale_delay_s": 0.5, "downscale_delay_s": 2, "look_back_period_s": 1, "metrics_interval_s": 0.5}
    scaling = {"min_replicas": 1, "max_replicas": 2, "target_ongoing_requests": 2, **delays}
    before = set(cluster.replicas())
    cluster.deploy({"num_replicas": 1, "max_replicas": 2}, num_replicas="auto", autoscaling_config=scaling)
    cluster.wait_for(lambda: len(cluster.replicas()) == 1 and not before & set(cluster.replicas()))
    cluster.wait_for(lambda: len(cluster.values("engine_up")) == 1)
    with under_load(cluster.url, 6):
        cluster.wait_for(lambda: len(cluster.values("engine_up")) == 2)
    cluster.wait_for(lambda: len(cluster.replicas()) == 1)
