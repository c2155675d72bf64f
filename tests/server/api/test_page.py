"""The page is small, needs nothing but this server, and may not load anything else."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

from asynclane.scheduler import ALL_PARAMS
from asynclane.server.api.page import PATHS

WEB = Path(__file__).parents[3] / "server" / "web"
VENDOR = WEB / "vendor"


@pytest.mark.parametrize("path", sorted(PATHS))
async def test_each_part_comes_without_a_key_and_with_a_strict_policy(api: Any, path: str) -> None:
    async with api(api_key="secret") as client:
        got = await client.http.get(path)
        head = await client.http.head(path)
    assert got.status_code == head.status_code == 200
    policy = got.headers["content-security-policy"]
    assert policy.startswith("default-src 'none';")
    assert not re.search(r"unsafe|\*|data:|https?:", policy)
    assert got.headers["x-content-type-options"] == "nosniff"


async def test_a_browser_that_has_the_newest_state_gets_no_other(api: Any) -> None:
    async with api() as client:
        first = await client.http.get("/web/chat.js")
        again = await client.http.get("/web/chat.js", headers={"if-none-match": first.headers["etag"]})
        other = await client.http.get("/web/turn.js", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["content-security-policy"] == first.headers["content-security-policy"]
    assert other.status_code == 200


async def test_the_page_is_small_and_every_address_in_it_is_served(api: Any) -> None:
    async with api() as client:
        parts = {path: (await client.http.get(path)).text for path in PATHS}
    assert sum(len(text.encode()) for text in parts.values()) < 190_000
    own = {path: text for path, text in parts.items() if "/vendor/" not in path}
    assert sum(len(text.encode()) for text in own.values()) < 97_000
    named = re.findall(r'(?:href|src)="([^"#]+)"', parts["/"])
    imported = [name for text in own.values() for name in re.findall(r'from "\./([^"]+)"', text)]
    grammars = set(re.findall(r'"(\w+)"', re.search(r"const LANGUAGES = {(.*?)};", own["/web/markdown.js"], re.S)[1]))
    imported += ["vendor/highlight.js", *(f"vendor/highlight-{name}.js" for name in grammars)]
    assert {f"/{name}" for name in named} | {f"/web/{name}" for name in imported} == PATHS - {"/"}
    urls = {url for text in own.values() for url in re.findall(r"https?://[^\s\"']+", text)}
    assert urls == {"http://www.w3.org/2000/svg"}, "a name, no address"


def test_vendored_files_are_those_of_the_registry_with_their_licences() -> None:
    """Nobody has changed one: the README has the SHA-256 of each."""
    listed = dict(re.findall(r"^\| `([\w.-]+)` \|.*\| `([0-9a-f]{64})` \|$", (VENDOR / "README.md").read_text(), re.M))
    files = [path for path in VENDOR.iterdir() if path.suffix != ".md"]
    assert {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files} == listed
    for path in VENDOR.glob("*.js"):
        assert (VENDOR / f"{path.stem.split('-')[0]}.LICENSE.txt").exists()


def test_every_parameter_of_a_decoder_has_a_sentence() -> None:
    text = (WEB / "params.js").read_text()
    names = re.findall(r'^  (\w+): "[A-Z0].*[.]",$', text, re.M)
    assert sorted(ALL_PARAMS.keys() | {"decoder", "temperature", "seed", "max_tokens"}) == sorted(names)


async def test_no_other_file_is_served(api: Any, live: Any) -> None:
    assert (WEB / "trace.html").exists()
    async with api() as client:
        assert (await client.http.post("/", json={})).status_code == 405
    async with live() as url:
        # As they are: a client of HTTP would resolve the dots.
        for path in ("/web/trace.html", "/web/../app.py", "/web/%2e%2e/app.py", "/web//../app.py", "/web/"):
            host, _, port = url.removeprefix("http://").partition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(f"GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
            writer.close()
            assert head.split()[1] == b"404"
            assert set(json.loads(body)) == {"error"}


async def test_no_page_of_the_server_loads_anything_from_elsewhere(api: Any) -> None:
    """It must work without a network; FastAPI's own pages of the document would not."""
    async with api() as client:
        document = await client.http.get("/openapi.json")
        assert document.status_code == 200
        for path in (*PATHS, *document.json()["paths"], "/docs", "/docs/oauth2-redirect", "/redoc"):
            page = (await client.http.get(path)).text
            assert not re.search(r"""(src|href)=["']?(https?:)?//""", page), path


def test_no_script_makes_markup_of_text() -> None:
    """The policy forbids it where browsers know trusted types; here for the others."""
    for path in WEB.glob("*.js"):
        found = re.findall(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|DOMParser", path.read_text())
        assert not found, path.name
