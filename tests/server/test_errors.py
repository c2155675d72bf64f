"""Every error has OpenAI's shape, and the status that its SDKs know."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from asynclane.server import errors
from asynclane.server.engine.messages import Delta

from ..support.fake_engine import SCRIPT, FakeEngine
from ..support.fakes import Panic
from ..support.http import CHAT, error_of


@pytest.mark.parametrize(
    ("raised", "status", "kind", "code"),
    [
        (errors.InvalidValue("threshold", "it must be ..."), 400, "invalid_request_error", "invalid_value"),
        (errors.ContextLengthExceeded(9, 5, 5), 400, "invalid_request_error", "context_length_exceeded"),
        (errors.Overloaded("the queue is full", retry_after_s=7), 429, "rate_limit_error", "overloaded"),
        (errors.EngineFailure("the step failed"), 500, "server_error", "engine_failure"),
        (errors.Draining(), 503, "server_error", "draining"),
        (errors.EngineDown("the engine has failed"), 503, "server_error", "engine_down"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("queued", [False, True])
async def test_what_the_engine_refuses_has_its_status(
    api: Any, raised: Exception, status: int, kind: str, code: str, stream: bool, queued: bool
) -> None:
    """At once, or later but before the first text."""
    async with api(FakeEngine([raised] if queued else raised)) as client:
        response = await client.chat(stream=stream)
    error = error_of(response, status)
    assert (error["type"], error["code"]) == (kind, code)
    assert response.headers.get("retry-after") == ("7" if status == 429 else None)


async def test_if_one_of_n_is_refused_the_others_are_given_up(api: Any) -> None:
    engine = FakeEngine([None], [None], errors.Overloaded("full"))
    async with api(engine) as client:
        response = await client.chat(n=3)
    assert response.status_code == 429
    assert len(engine.answers) == 3
    assert all(answer.left.is_set() for answer in engine.answers)


@pytest.mark.parametrize("stream", [False, True])
async def test_if_one_of_n_fails_the_others_are_given_up(api: Any, stream: bool) -> None:
    engine = FakeEngine([Delta("a"), errors.EngineFailure("the step failed")], [None])
    async with api(engine) as client:
        response = await client.chat(n=2, stream=stream)
    assert response.status_code == (200 if stream else 500)
    assert "the step failed" in response.text
    assert all(answer.left.is_set() for answer in engine.answers)


async def test_an_error_in_a_stream_is_an_event_and_then_the_stream_ends(api: Any) -> None:
    engine = FakeEngine([Delta("a"), errors.EngineFailure("the step failed")])
    async with api(engine) as client:
        response = await client.chat(stream=True)
    *_, text, last, rest = response.text.split("\n\n")
    assert '"content":"a"' in text
    name, _, data = last.partition("\n")
    assert (name, rest) == ("event: error", "")
    error = {"message": "the step failed", "type": "server_error", "param": None, "code": "engine_failure"}
    assert json.loads(data.removeprefix("data: ")) == {"error": error}


@pytest.mark.parametrize("begun", [(), (Delta("a"),)], ids=["before the first text", "after it"])
@pytest.mark.parametrize("stream", [False, True])
async def test_an_unexpected_error_keeps_its_details_to_the_log(
    api: Any, caplog: Any, stream: bool, begun: tuple[Delta, ...]
) -> None:
    async with api(FakeEngine([*begun, RuntimeError("secret path /etc/x")])) as client:
        response = await client.chat(stream=stream)
    assert "secret" not in response.text
    assert "internal error" in response.text
    assert response.status_code == (200 if stream and begun else 500)
    assert response.headers["x-request-id"]
    if stream and begun:
        assert "secret path" in caplog.text


async def test_a_panic_of_a_library_is_an_error_of_its_request(api: Any) -> None:
    async with api(FakeEngine(Panic("secret"), SCRIPT)) as client:
        assert error_of(await client.chat(), 500)["message"] == "internal error"
        assert (await client.chat()).status_code == 200


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("name", ["gpt-4o", "", "tiny-llada ", "x" * 1000])
async def test_an_unknown_model_is_not_found(api: Any, path: str, name: str) -> None:
    body = {"model": name, "prompt": "x"} if path == "/v1/completions" else {**CHAT, "model": name}
    async with api() as client:
        error = error_of(await client.raw(path, json.dumps(body)), 404)
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert "tiny-llada" in error["message"]


async def test_the_error_about_an_unknown_path_or_method_lists_those_that_exist(api: Any) -> None:
    async with api() as client:
        missing = error_of(await client.http.post("/chat/completions", json={}), 404)
        wrong = await client.http.get("/v1/chat/completions")
        paths = (await client.http.get("/openapi.json")).json()["paths"]
    assert all(name in missing["message"] for name in ("'/chat/completions'", *paths))
    assert error_of(wrong, 405)["message"] == "'/v1/chat/completions' does not take GET, but POST"
    assert wrong.headers["allow"] == "POST"


async def test_a_body_of_just_the_limit_is_read(api: Any) -> None:
    body = json.dumps(CHAT)
    async with api(max_body_bytes=len(body)) as client:
        assert (await client.raw("/v1/chat/completions", body)).status_code == 200


@pytest.mark.parametrize(
    "header", [None, "secret", "Bearer", "Bearer wrong", "Bearer secre", "Basic secret", "Bearer sécret"]
)
async def test_without_the_key_nothing_is_answered(api: Any, header: str | None) -> None:
    engine = FakeEngine()
    headers = {"authorization": header.encode()} if header else {}
    async with api(engine, api_key="secret") as client:
        for method, path in [("POST", "/v1/chat/completions"), ("GET", "/v1/models"), ("GET", "/openapi.json")]:
            response = await client.http.request(method, path, headers=headers, content=b"not even JSON")
            assert error_of(response, 401)["code"] == "invalid_api_key"
            assert response.headers["www-authenticate"] == "Bearer"
    assert engine.prompts == []


@pytest.mark.parametrize("scheme", ["Bearer", "bearer"])
async def test_with_the_key_everything_is(api: Any, scheme: str) -> None:
    async with api(api_key="s\u00e9cret") as client:
        header = f"{scheme} s\u00e9cret".encode()
        response = await client.http.get("/v1/models", headers={"authorization": header})
    assert response.status_code == 200


async def test_probes_and_scrapers_need_no_key(api: Any) -> None:
    async with api(api_key="secret") as client:
        for path in ("/health", "/ready", "/metrics"):
            assert (await client.http.get(path)).status_code == 200


async def test_the_document_says_which_paths_require_the_key(api: Any) -> None:
    async with api(api_key="k") as client:
        paths = (await client.http.get("/openapi.json", headers={"authorization": "Bearer k"})).json()["paths"]
    for path, operations in paths.items():
        for operation in operations.values():
            opened = path in ("/health", "/ready", "/metrics")
            assert "422" not in operation["responses"]
            assert ("401" in operation["responses"], "security" in operation) == (not opened, not opened), path


LONG = "k" * 100_000


@pytest.mark.parametrize(
    "value",
    [LONG, [LONG] * 1000, {LONG: LONG}, dict.fromkeys(map(str, range(10**5)), 1), [[[LONG]] * 9] * 9, b"x" * 10**5],
    ids=["text", "list", "long name", "names", "nested", "bytes"],
)
def test_a_value_is_shown_by_its_beginning(value: object) -> None:
    assert errors.shown(value) == repr(value)[: errors.SHOWN_CHARS - 3] + "..."


@pytest.mark.parametrize("value", ["", "a'b", [], {}, [1, "a", None, {"b": [True]}], {"a": {"c": 1.5}, "d": []}, 5])
def test_a_short_value_is_shown_as_it_is(value: object) -> None:
    """With the words that JSON has."""
    assert errors.shown(value) == repr(value).replace("None", "null").replace("True", "true")


def test_the_path_of_a_parameter_is_cut() -> None:
    assert errors.dotted(["a", 0, "b"]) == "a.0.b"
    for names in ([LONG], ["a"] * 10_000, [LONG] * 1000):
        assert len(errors.dotted(names)) == errors.PARAM_CHARS
        assert errors.dotted(names).endswith("...")
    error = errors.InvalidValue(LONG, LONG)
    assert (len(error.param or ""), len(error.message)) == (errors.PARAM_CHARS, errors.MESSAGE_CHARS)


def test_every_error_has_a_status_and_a_type() -> None:
    assert set(errors.STATUS) == set(errors.ApiError.__subclasses__())
    drawn = re.findall(r"- (\w+) +(\d+)?", errors.__doc__ or "")
    assert {name: int(status) for name, status in drawn} == {e.__name__: at for e, (at, _) in errors.STATUS.items()}
