"""The page is small, needs nothing but this server, and may not load anything else."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from asynclane.server.page import PATHS

from .conftest import error_of

WEB = Path(__file__).parents[2] / "server" / "web"


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


async def test_the_page_is_small_and_every_address_in_it_is_served(api: Any) -> None:
    async with api() as client:
        parts = {path: (await client.http.get(path)).text for path in PATHS}
    assert sum(len(text.encode()) for text in parts.values()) < 40_000
    named = re.findall(r'(?:href|src)="([^"#]+)"', parts["/"])
    imported = [name for text in parts.values() for name in re.findall(r'from "\./([^"]+)"', text)]
    assert {f"/{name}" for name in named} | {f"/web/{name}" for name in imported} == PATHS - {"/"}
    urls = {url for text in parts.values() for url in re.findall(r"https?://[^\s\"']+", text)}
    assert urls == {"http://www.w3.org/2000/svg"}, "a name, no address"


async def test_no_other_file_is_served(api: Any) -> None:
    assert (WEB / "trace.html").exists()
    async with api() as client:
        for path in ("/web/trace.html", "/web/../app.py", "/web/"):
            response = await client.http.get(path)
            assert response.status_code == 404
            assert error_of(response)
        assert (await client.http.post("/", json={})).status_code == 405


def test_no_script_makes_markup_of_text() -> None:
    """The policy forbids it where browsers know trusted types; here for the others."""
    for path in WEB.glob("*.js"):
        found = re.findall(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|DOMParser", path.read_text())
        assert not found, path.name
