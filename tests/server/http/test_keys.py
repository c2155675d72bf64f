"""Keys: a blank one opens nothing, each has a name and limits, and the name is the client."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
from pathlib import Path
from typing import Any

import httpx
import pytest

from asynclane.server.app import build_service
from asynclane.server.http.keys import BadKeys, Key, Keys, RequireKey, client_of, read_keys
from asynclane.server.settings import Settings, SettingsError, check_proxies

from ...support.fake_engine import SCRIPT, FakeEngine
from ...support.http import CHAT, error_of

FILE = """\
# two clients
alice:k1 weight=3

bob:k:2=  max_requests=1 weight=2
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_text(FILE)
    return path


def digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def test_a_file_names_keys_and_their_limits(file: Path) -> None:
    named = [Key("alice", digest("k1"), 3), Key("bob", digest("k:2="), 2, 1)]
    assert read_keys(None, file) == named
    assert read_keys(" k3\n", file) == [Key("", digest("k3")), *named], "a secret's line break is no part of it"
    assert read_keys(None, None) == []
    assert not Keys(None, None)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "has no key"),
        ("\n# alice:secret\n", "has no key"),
        ("alice:", ":1: a line is NAME:KEY"),
        ("alice:   ", ":1: a line is NAME:KEY"),
        ("\nalice: secret", ":2: a line is NAME:KEY"),
        (":secret", ":1: a line is NAME:KEY"),
        ("secret", ":1: a line is NAME:KEY"),
        ("a/b:secret", ":1: a line is NAME:KEY"),
        ("10.0.0.5:secret", ":1: a line is NAME:KEY"),  # the name of a client without a key
        ("alice:secret\nalice:other", ":2: the name alice is taken"),
        ("alice:secret\nbob:secret", ":2: the key of bob is another client's too"),
        ("alice:unnamed", ":1: the key of alice is another client's too"),
        ("alice:secret weight=0", "may follow the key of alice"),
        ("alice:secret weight=1.5", "may follow the key of alice"),
        ("alice:secret weight=1 weight=2", "may follow the key of alice"),
        ("alice:secret max_running=2", "may follow the key of alice"),
        ("alice:secret # hers", "may follow the key of alice"),
        (b"alice:secret\xff", "is not UTF-8"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_line_without_a_key(
    tmp_path: Path, content: str | bytes, message: str
) -> None:
    path = tmp_path / "keys"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(BadKeys) as refused:
        read_keys("unnamed", path)
    assert message in str(refused.value)
    assert "secret" not in str(refused.value)
    assert "\n" not in str(refused.value)


def test_keys_are_read_before_the_model(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for name, message in (("none", "cannot be read: No such"), ("fifo", "is not a file"), (".", "is not a file")):
        with pytest.raises(BadKeys, match=message):
            build_service(Settings(model="no-such-model", api_key_file=str(tmp_path / name)))


@pytest.mark.parametrize("broken", ["alice:", None])
def test_a_file_is_read_again_and_a_broken_one_changes_nothing(
    file: Path, broken: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    keys = Keys(None, file)
    if broken is None:
        file.unlink()
    else:
        file.write_text(broken)
    keys.reload()
    assert keys.find(b"k1") is not None
    (line,) = caplog.messages
    assert line.startswith("the API keys stay as they are: ")
    with caplog.at_level(logging.INFO):
        file.write_text("carol:k9")
        keys.reload()
    assert caplog.messages[1:] == ["1 API keys are valid now"]
    assert keys.find(b"k1") is None
    assert keys.find(b"k9") == Key("carol", digest("k9"))


async def test_a_named_key_is_the_client_its_weight_and_the_root_of_its_salts(api: Any, file: Path) -> None:
    engine = FakeEngine()
    async with api(engine, api_key="k3", api_key_file=str(file)) as client:
        for key, cache_salt in (("k1", None), ("k1", "s"), ("k:2=", "s"), ("k3", None), ("k3", "alice/")):
            response = await client.http.post(
                "/v1/chat/completions", json={**CHAT, "cache_salt": cache_salt}, headers=bearer(key)
            )
            assert response.status_code == 200
        for wrong in ("k", "k1 weight=3", "alice", "alice:k1", "", " "):
            error_of(await client.http.get("/v1/models", headers=bearer(wrong)), 401)
    assert [(options.client, options.weight, options.cache_salt) for options in engine.options] == [
        ("alice", 3, "alice/"),
        ("alice", 3, "alice/s"),
        ("bob", 2, "bob/s"),
        ("127.0.0.1", 1, "/"),
        ("127.0.0.1", 1, "/alice/"),
    ]


async def test_a_key_may_come_in_a_header_of_its_own(api: Any, file: Path) -> None:
    engine = FakeEngine()
    async with api(engine, api_key_file=str(file)) as client:
        for headers, status in (
            ({"x-api-key": "k1"}, 200),
            ({"x-api-key": " k1 ", "authorization": "Basic k:2="}, 200),
            ({"x-api-key": "k1", **bearer("k:2=")}, 200),
            ({"x-api-key": "k1", **bearer("wrong")}, 200),
            ({"x-api-key": "wrong", **bearer("k:2=")}, 200),
            ({"x-api-key": "Bearer k1"}, 401),
            ({"x-api-key": ""}, 401),
        ):
            response = await client.http.post("/v1/chat/completions", json=CHAT, headers=headers)
            assert response.status_code == status, headers
        document = (await client.http.get("/openapi.json", headers=bearer("k1"))).json()
    assert [options.client for options in engine.options] == ["alice", "alice", "bob", "alice", "bob"]
    assert document["components"]["securitySchemes"]["key_header"]["name"] == "x-api-key"
    assert document["paths"]["/v1/messages"]["post"]["security"] == [{"key": []}, {"key_header": []}]


async def test_the_log_has_a_keys_name_and_never_the_key(
    api: Any, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with api(api_key="k3", api_key_file=str(file)) as client:
        for key in ("k:2=", "k3", "k4"):
            await client.http.get("/v1/models", headers=bearer(key))
    fields = [vars(record)["fields"] for record in caplog.records if record.name == "asynclane.request"]
    assert [(one.get("key"), one["client"], one["status"]) for one in fields] == [
        ("bob", "127.0.0.1", 200),
        (None, "127.0.0.1", 200),
        (None, "127.0.0.1", 401),
    ]
    assert not any(key in str(vars(record)) for record in caplog.records for key in ("k:2=", "'k3'", "k4"))


async def test_without_keys_the_address_is_the_client_and_all_share_a_salt(api: Any) -> None:
    engine = FakeEngine()
    async with api(engine) as client:
        await client.chat()
        await client.chat(cache_salt="alice/")
    assert [(options.client, options.weight, options.cache_salt) for options in engine.options] == [
        ("127.0.0.1", 1, ""),
        ("127.0.0.1", 1, "alice/"),
    ]


@pytest.mark.parametrize(
    ("proxies", "client"),
    [
        (None, "192.0.2.9"),
        ("127.0.0.1", "192.0.2.9"),
        ("10.0.0.7,127.0.0.0/8", "192.0.2.9"),
        ("10.0.0.7", "127.0.0.1"),
    ],
)
async def test_only_a_trusted_proxy_says_whose_a_request_is(live: Any, proxies: str | None, client: str) -> None:
    engine = FakeEngine()
    async with live(engine, trusted_proxies=proxies) as url, httpx.AsyncClient(base_url=url) as http:
        response = await http.post("/v1/chat/completions", json=CHAT, headers={"x-forwarded-for": "192.0.2.9"})
    assert response.status_code == 200
    assert [options.client for options in engine.options] == [client]


@pytest.mark.parametrize("proxies", ["proxy", "10.0.0.0/33", "10.0.0.1,", "10.0.0.1/8", "10.0.0.1, *"])
def test_a_proxy_is_an_address_or_a_network(proxies: str) -> None:
    with pytest.raises(SettingsError, match=r"^--trusted-proxies: .* is no address and no network: give"):
        check_proxies(proxies)


async def test_a_key_has_no_more_requests_at_once_than_it_may(
    api: Any, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "asynclane.request")
    engine = FakeEngine([None], SCRIPT, SCRIPT)
    async with api(engine, api_key_file=str(file)) as client:

        async def chat(key: str) -> int:
            response = await client.http.post("/v1/chat/completions", json=CHAT, headers=bearer(key))
            return int(response.status_code)

        first = asyncio.create_task(chat("k:2="))
        while not engine.answers:
            await asyncio.sleep(0)
        assert [await chat("k:2="), await chat("k1")] == [429, 200]
        logged = [record.__dict__["fields"] for record in caplog.records if record.name == "asynclane.request"]
        assert [(fields["status"], fields["key"]) for fields in logged] == [(429, "bob"), (200, "alice")]
        first.cancel()
        await asyncio.wait({first})
        assert await chat("k:2=") == 200


@pytest.mark.parametrize(
    ("address", "client"),
    [
        (("192.0.2.7", 1), "192.0.2.7"),
        (("::ffff:192.0.2.7", 1), "192.0.2.7"),
        (("2001:db8:1:2:3:4:5:6", 1), "2001:db8:1:2::/64"),
        (("2001:db8:1:2:ffff::", 1), "2001:db8:1:2::/64"),
        (("fe80::1%eth0", 1), "fe80::/64"),
        (("testclient", 1), "testclient"),
        (None, ""),
    ],
)
def test_an_address_is_a_client_and_a_network_of_ipv6_is_one(address: tuple[str, int] | None, client: str) -> None:
    assert client_of({"client": address}) == client


async def test_what_a_key_may_have_is_divided_among_processes(tmp_path: Path) -> None:
    """And rounded up."""
    path, release, statuses = tmp_path / "keys", asyncio.Event(), []
    path.write_text("alice:k1 max_requests=3\n")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await release.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def note(message: Any) -> None:
        if "status" in message:
            statuses.append(message["status"])

    guarded = RequireKey(app, Keys(None, path, processes=2), frozenset())
    scope = {"type": "http", "path": "/v1/models", "headers": [(b"authorization", b"Bearer k1")]}
    served = [asyncio.create_task(guarded({**scope}, None, note)) for _ in range(3)]  # type: ignore[arg-type]
    while not statuses:
        await asyncio.sleep(0)
    release.set()
    await asyncio.gather(*served)
    assert statuses == [429, 200, 200]
