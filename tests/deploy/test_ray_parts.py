"""The parts of Ray Serve's application, without a cluster."""

from __future__ import annotations

import asyncio
import json
import pickle
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.types import Message, Receive, Scope, Send

from asynclane.scheduler import Load, RequestStats
from asynclane.server.metrics import Metrics

pytest.importorskip("ray")

from asynclane.deploy.ray import app
from asynclane.deploy.ray.arguments import BadArgument, read_arguments
from asynclane.deploy.ray.exposition import merged
from asynclane.deploy.ray.proxy import LostReplica, PromptSession, beginning
from asynclane.deploy.ray.router import Router

START = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(b"content-type", b"text/event-stream; charset=utf-8")],
}
EVENT = {"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True}


def test_arguments_are_those_of_replicas_and_of_the_server() -> None:
    found = read_arguments({"model": "tiny-sdar", "num_replicas": "3", "max_queue": 9, "num_gpus": 1})
    assert (found.replicas.num_replicas, found.replicas.num_gpus) == (3, 1.0)
    assert found.given == {"model": "tiny-sdar", "max_queue": "9", "device": "cuda"}
    assert (found.settings.max_queue, found.settings.device) == (9, "cuda")
    assert read_arguments({}).given == {"device": "cpu"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"modle": "x"}, "modle is no argument: did you mean model?"),
        ({"num_replica": 1}, "num_replica is no argument: did you mean num_replicas?"),
        ({"num_replicas": 0}, "num_replicas must be a whole number from 1 to 1048576, not 0"),
        ({"num_gpus": "one"}, "num_gpus must be a number from 0 to 1048576, not 'one'"),
        ({"num_cpus": "nan"}, "num_cpus must be a number from 0.01 to 1048576, not 'nan'"),
        ({"routing": "random"}, "routing must be one of positions, ray, not 'random'"),
        ({"num_replicas": 3, "max_replicas": 2}, "max_replicas must be at least num_replicas, 3"),
        ({"target_requests": 3}, "target_requests needs max_replicas"),
        ({"device": "cuda"}, "device=cuda does not fit num_gpus=0"),
        ({"device": "cpu", "num_gpus": 1}, "device=cpu does not fit num_gpus=1"),
        ({"model": "tiny-none"}, "no model 'tiny-none': it is no directory here"),
        ({"api_key_file": "/none"}, "--api-key-file: /none cannot be read: No such file or directory"),
        ({"drain_s": "long"}, "--drain-s must be a whole number, not 'long'"),
        ({"frontends": 2}, "frontends is for servers without Ray, whose proxies have http_options instead"),
    ],
)
def test_an_argument_that_cannot_be_used_is_refused_with_one_line(given: dict[str, Any], message: str) -> None:
    with pytest.raises(BadArgument) as refused:
        app(given)
    assert refused.value.message.startswith(message)
    assert "\n" not in refused.value.message
    assert refused.value.exit_code == 2
    assert pickle.loads(pickle.dumps(refused.value)).message == refused.value.message


def test_a_deployment_has_what_its_arguments_say() -> None:
    given = {"num_replicas": 2, "max_replicas": 8, "max_num_seqs": 16, "max_queue": 32, "drain_s": 60, "num_gpus": 1}
    deployment = app(given)._bound_deployment
    assert deployment.name == "asynclane"
    scaling = deployment._deployment_config.autoscaling_config
    assert (scaling.min_replicas, scaling.max_replicas, scaling.target_ongoing_requests) == (2, 8, 16)
    assert deployment.max_ongoing_requests > 16 + 32
    assert deployment._deployment_config.graceful_shutdown_timeout_s > 60
    assert deployment.ray_actor_options["num_gpus"] == 1
    assert "Router" in deployment._deployment_config.request_router_config.request_router_class
    plain = app({"routing": "ray"})._bound_deployment
    assert plain._deployment_config.request_router_config.is_default_request_router()


def test_a_page_of_all_replicas_keeps_the_lines_of_a_metric_together() -> None:
    pages = {}
    for name, waiting in (("b", 3), ("a", 5)):
        metrics = Metrics(pages_total=7)
        metrics.observe_load(Load(waiting, 1, 2, 3, 4, 5, 7))
        metrics.request_ended("stop", 9, RequestStats(forwards=3))
        pages[name] = metrics.exposition()
    page = merged(pages).decode()
    families = list(text_string_to_metric_families(page))
    assert len({family.name for family in families}) == len(families)
    alone = [family.name for family in text_string_to_metric_families(pages["a"].decode())]
    assert [family.name for family in families] == alone
    samples = {(one.name, *sorted(one.labels.items())): one.value for family in families for one in family.samples}
    assert samples["asynclane_queue_depth", ("replica", "a")] == 5
    assert samples["asynclane_queue_depth", ("replica", "b")] == 3
    assert samples["asynclane_requests_total", ("outcome", "stop"), ("replica", "b")] == 1
    assert len(samples) == 2 * len(
        [one for family in text_string_to_metric_families(pages["a"].decode()) for one in family.samples]
    )


async def sent_by(application: Any, scope: dict[str, Any], *received: Message) -> list[Message]:
    sent: list[Message] = []
    waiting = list(received)

    async def receive() -> Message:
        return waiting.pop(0) if waiting else {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    await application({"type": "http", "method": "POST", "headers": [], **scope}, receive, send)
    return sent


def answering(*messages: Message) -> Any:
    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        for message in messages:
            await send(message)

    return application


async def test_a_stream_without_an_end_gets_an_error_event() -> None:
    *before, last = await sent_by(LostReplica(answering(START, EVENT)), {"path": "/v1/chat/completions"})
    assert before == [START, EVENT]
    name, data = last["body"].decode().strip().split("\n")
    assert (name, last["more_body"]) == ("event: error", False)
    assert json.loads(data.removeprefix("data: "))["error"]["code"] == "engine_down"


async def test_a_response_that_has_not_begun_is_a_503() -> None:
    start, body = await sent_by(LostReplica(answering()), {"path": "/v1/chat/completions"})
    assert start["status"] == 503
    assert json.loads(body["body"])["error"]["type"] == "server_error"


@pytest.mark.parametrize(
    "messages", [(START, {"type": "http.response.body", "body": b"x"}), (dict(START, headers=[]),)]
)
async def test_other_responses_stay_as_they_are(messages: tuple[Message, ...]) -> None:
    assert await sent_by(LostReplica(answering(*messages)), {"path": "/"}) == list(messages)


async def session_of(body: bytes, *headers: tuple[bytes, bytes], path: str = "/v1/chat/completions") -> bytes | None:
    """The session that the application sees; it also must see the whole body, in as many parts as it came."""
    seen: dict[bytes, bytes] = {}

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        seen.update(scope["headers"])
        parts = [await receive() for _ in range(3)]
        assert b"".join(part.get("body", b"") for part in parts) == body
        assert [part["type"] for part in parts] == ["http.request", "http.request", "http.disconnect"]

    parts = [
        {"type": "http.request", "body": part, "more_body": more}
        for part, more in ((body[:5], True), (body[5:], False))
    ]
    await sent_by(PromptSession(application), {"path": path, "headers": list(headers)}, *parts)
    return seen.get(b"x-session-id")


def chat(*texts: str, **options: Any) -> bytes:
    roles = ["system", *("user", "assistant") * len(texts)]
    messages = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]
    return json.dumps({"model": "m", "messages": messages, **options}).encode()


async def test_all_turns_of_a_conversation_have_one_session() -> None:
    first = await session_of(chat("be kind", "hello"))
    assert first
    assert await session_of(chat("be kind", "hello", "hi", "who?"), (b"content-type", b"x")) == first
    assert await session_of(chat("be kind", "hello", temperature=1)) == first
    assert await session_of(chat("be kind", "good day")) != first
    assert await session_of(chat("be kind", "hello"), (b"authorization", b"Bearer other")) != first


async def test_a_prompt_has_the_session_of_its_head() -> None:
    head = "word " * 1000
    body = [json.dumps({"prompt": head + end}).encode() for end in ("a", "b")]
    first, second = [await session_of(one, path="/v1/completions") for one in body]
    assert first
    assert first == second == await session_of(body[0], path="/v1/fim/completions")
    ids = [json.dumps({"prompt": [*range(600), end]}).encode() for end in (1, 2)]
    assert len({await session_of(one, path="/v1/completions") for one in ids}) == 1


async def test_the_items_of_a_response_have_the_session_of_the_first() -> None:
    first = {"role": "user", "content": "hello"}
    body = [json.dumps({"input": [first, *more]}).encode() for more in ([], [{"role": "assistant", "content": "hi"}])]
    sessions = {await session_of(one, path="/v1/responses") for one in body}
    assert len(sessions) == 1
    assert None not in sessions
    assert await session_of(json.dumps({"input": "good day"}).encode(), path="/v1/responses") not in sessions


async def test_a_session_of_the_client_is_kept() -> None:
    assert await session_of(chat("a", "b"), (b"x-session-id", b"mine")) == b"mine"


@pytest.mark.parametrize(
    "body", [b"nothing", b"[1, 2]", b'{"messages": 3}', b'{"messages": []}', b"{" * 100_000, b" " * 300_000]
)
async def test_what_has_no_prompt_has_no_session(body: bytes) -> None:
    assert await session_of(body) is None


async def test_other_requests_have_no_session() -> None:
    assert await session_of(chat("a", "b"), path="/tokenize") is None
    assert beginning(b'{"prompt": ""}', "prompt") is not None


class Name(NamedTuple):
    unique_id: str


def replica(name: str, **stats: Any) -> Any:
    return SimpleNamespace(replica_id=Name(name), routing_stats=stats)


class Replicas:
    """A router with replicas that report what a test says."""

    def __init__(self, *replicas: Any) -> None:
        self.router = Router.__new__(Router)
        self.router._sent = {}
        self.replicas = list(replicas)

    def send(self, session: str = "") -> list[str]:
        """The names of replicas in the order in which they are tried for one request."""
        context = SimpleNamespace(should_backoff=False)
        pending = SimpleNamespace(metadata=SimpleNamespace(session_id=session), routing_context=context)
        ranks = asyncio.run(self.router.choose_replicas(self.replicas, pending))  # type: ignore[arg-type]
        assert context.should_backoff  # or Ray would try again at once, for ever
        return [one.replica_id.unique_id for (one,) in ranks]


def test_a_request_goes_where_the_fewest_positions_are_in_flight() -> None:
    busy = replica("busy", number=1, positions=500, requests=2)
    free = replica("free", number=1, positions=100, requests=8)
    replicas = Replicas(busy, free)
    assert replicas.send() == ["free", "busy"]
    # 60 positions a request: after seven of them the other one has less, until the next report.
    assert [replicas.send()[0] for _ in range(10)].count("free") in range(6, 9)
    free.routing_stats = {"number": 2, "positions": 0, "requests": 0}
    assert replicas.send()[0] == "free"


def test_a_burst_before_any_report_is_divided() -> None:
    replicas = Replicas(replica("a"), replica("b"))
    chosen = [replicas.send()[0] for _ in range(10)]
    assert chosen.count("a") == chosen.count("b") == 5


def test_a_replica_whose_engine_has_failed_gets_nothing() -> None:
    failed = replica("failed", number=1, positions=0, requests=0, ready=False)
    replicas = Replicas(failed, replica("good", number=1, positions=900, requests=3, ready=True))
    assert replicas.send() == ["good"]
    assert Replicas(failed).send() == ["failed"]  # it says why


def test_a_session_stays_with_its_replica_unless_that_has_much_more_to_do() -> None:
    stats: dict[str, Any] = {"number": 1, "positions": 100, "requests": 2, "prefixes": True}
    replicas = Replicas(*(replica(name, **stats) for name in "abcd"))
    homes = {f"session {number}": replicas.send(f"session {number}")[0] for number in range(4)}
    assert all(Replicas(*replicas.replicas).send(session)[0] == home for session, home in homes.items())
    many = [Replicas(*replicas.replicas).send(f"session {number}")[0] for number in range(200)]
    assert all(30 <= many.count(name) <= 70 for name in "abcd")
    session, home = next(iter(homes.items()))
    (crowded,) = (one for one in replicas.replicas if one.replica_id.unique_id == home)
    crowded.routing_stats = {**stats, "number": 2, "positions": 1000, "requests": 20}
    assert Replicas(*replicas.replicas).send(session)[0] != home
    left = [one for one in replicas.replicas if one is not crowded]  # sessions of the others stay where they are
    kept = [name for name in many if name != home]
    moved = [Replicas(*left).send(f"session {number}")[0] for number, name in enumerate(many) if name != home]
    assert moved == kept


def test_models_that_keep_no_prompts_have_no_sessions() -> None:
    stats = {"number": 1, "positions": 0, "requests": 0, "prefixes": False}
    replicas = Replicas(replica("a", **stats), replica("b", **stats))
    chosen = [replicas.send("one session")[0] for _ in range(10)]
    assert chosen.count("a") == chosen.count("b") == 5
