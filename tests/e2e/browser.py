"""Starts the Chromium that is on this machine; none is downloaded. What tests of the page share."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page, Route, expect, sync_playwright

from ..support.servers import Server

NAMES = (
    "chromium-headless-shell",  # has no window to draw: a page opens in a third of the time
    "chromium",
    "chromium-browser",
    "google-chrome",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
)
# The network is not used, and the sandbox does not work for root in a container.
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
CODE = "Write a Python function `count_even(numbers)` that returns the number of even numbers in a list."
PARIS = "What is the capital of France?"
STORY = "Tell me a short story about Mia and a fox at the park."
PHONE = {"width": 360, "height": 640}

Open = Callable[..., Page]


def find_chromium() -> str | None:
    return next(filter(None, map(shutil.which, NAMES)), None)


@contextmanager
def open_browser(chromium: str) -> Iterator[Browser]:
    """Headless, with an empty profile of its own."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


# Playwright runs an event loop in this thread as long as it is open: no longer than a module, for async tests have
# their own.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    chromium = find_chromium()
    if chromium is None and os.environ.get("REQUIRE_BROWSER"):
        pytest.fail(
            "REQUIRE_BROWSER is set, but there is no chromium on the PATH: apt-get install chromium-headless-shell"
        )
    if chromium is None:
        pytest.skip("needs a Chromium on the PATH (apt-get install chromium-headless-shell)")
    with open_browser(chromium) as browser:
        yield browser


@pytest.fixture
def visit(browser: Browser, server: Server) -> Iterator[Open]:
    """`visit(**options of a browser's context)`: the page, connected. It must not complain in the console by the end;
    `refusals` is how many refused requests may be named there, and `script` runs before the page's own."""
    errors: list[str] = []
    allowed = 0
    contexts = []

    def visit(url: str = server.url, refusals: int = 0, script: str = "", **options: Any) -> Page:
        nonlocal allowed
        allowed += refusals
        contexts.append(browser.new_context(**options))
        page = contexts[-1].new_page()
        page.set_default_timeout(15_000)
        page.on("console", lambda message: errors.append(message.text) if message.type != "info" else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        if script:
            page.add_init_script(script)
        page.goto(url)
        if not refusals:
            expect(page.locator("#model")).to_have_text(model_of(url))
        return page

    yield visit
    for context in contexts:
        context.close()
    refused = [error for error in errors if error.startswith("Failed to load resource")]
    assert (len(refused), len(errors)) == (allowed, allowed), errors


def model_of(url: str) -> str:
    """The model of the server that an address leads to."""
    return str(httpx.get(httpx.URL(url).join("/v1/models")).json()["data"][0]["id"])


def reply(server: Server, question: str, **fields: object) -> dict[str, Any]:
    """Return the response of the API to the same question."""
    body = {"model": model_of(server.url), "messages": [{"role": "user", "content": question}], **fields}
    response = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60)
    return dict(response.json())


def ask(page: Page, question: str) -> None:
    page.get_by_label("Message").fill(question)
    page.keyboard.press("Enter")


def answered(page: Page) -> str:
    """The text of the latest answer as it stands on the page, once all of it is there."""
    expect(page.locator("article:not(.racer)").last.locator(".actions")).to_be_visible(timeout=30_000)
    return page.locator(".answer").last.text_content() or ""


def button(page: Page, name: str) -> Any:
    return page.get_by_role("button", name=name, exact=True)


def canned(*texts: str) -> Callable[[Route], None]:
    """A server whose model answers these, one token for each text."""
    tokens = [{"position": position, "text": text} for position, text in enumerate(texts)]
    lane = {"id": 0, "parent": None, "role": "refine", "start": 0, "end": len(texts) + 1, "fate": "live"}
    step = {"step": 0, "computed": [0, 1], "refresh": False, "lanes": [{**lane, "tokens": [*texts, None]}]}
    lanes = {"choices": [{"delta": {}, "finish_reason": None}], "lanes": {**step, "commits": tokens}}
    delta = {"choices": [{"delta": {"content": "".join(texts)}, "finish_reason": "stop"}]}
    stream = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in (lanes, delta)) + "data: [DONE]\n\n"
    return lambda route: route.fulfill(content_type="text/event-stream", body=stream)
