"""The chat page in a real browser, against the real server with the embedded model.

Skipped where there is no Chromium, unless REQUIRE_BROWSER is set, as it is in CI.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page, Route, expect

from ..support.processes import ASYNCLANE, environment
from ..support.servers import Server, start_server, stop_server
from .browser import find_chromium, open_browser

CODE = "Write a Python function `count_even(numbers)` that returns the number of even numbers in a list."
PARIS = "What is the capital of France?"
STORY = "Tell me a short story about Mia and a fox at the park."
HOSTILE = (
    "<img src=x onerror=alert(1)><script>alert(2)</script></p><b>bold</b> & &amp; \u202e"
    + "unbreakable" * 80
    + " \u0645\u0631\u062d\u0628\u0627 \u05e9\u05dc\u05d5\u05dd \U0001f468\u200d\U0001f469\u200d\U0001f467 \u4f60\u597d"
)
PHONE = {"width": 360, "height": 640}

pytestmark = pytest.mark.browser

Open = Callable[..., Page]


# Playwright runs an event loop in this thread as long as it is open: no longer than this module, for async tests have
# their own.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    chromium = find_chromium()
    if chromium is None and os.environ.get("REQUIRE_BROWSER"):
        pytest.fail("REQUIRE_BROWSER is set, but there is no chromium on the PATH: apt-get install chromium")
    if chromium is None:
        pytest.skip("needs a Chromium on the PATH (apt-get install chromium)")
    with open_browser(chromium) as browser:
        yield browser


@pytest.fixture
def visit(browser: Browser, server: Server) -> Iterator[Open]:
    """`visit(**options of a browser's context)`: the page, connected. It must not complain in the console by the end;
    `refusals` is how many refused requests may be named there."""
    errors: list[str] = []
    allowed = 0
    contexts = []

    def visit(url: str = server.url, refusals: int = 0, **options: Any) -> Page:
        nonlocal allowed
        allowed += refusals
        contexts.append(browser.new_context(**options))
        page = contexts[-1].new_page()
        page.set_default_timeout(15_000)
        page.on("console", lambda message: errors.append(message.text) if message.type != "info" else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(url)
        if not refusals:
            expect(page.locator("#model")).to_have_text("tiny-llada")
        return page

    yield visit
    for context in contexts:
        context.close()
    refused = [error for error in errors if error.startswith("Failed to load resource")]
    assert (len(refused), len(errors)) == (allowed, allowed), errors


def ask(page: Page, question: str) -> None:
    page.get_by_label("Message").fill(question)
    page.keyboard.press("Enter")


def choose(page: Page, **settings: str) -> None:
    """Settings by the ids of their fields, decoding parameters by their names."""
    page.locator("#settings > summary").click()
    for name, value in settings.items():
        field = page.locator(f"#settings [id={name}], #settings [name={name}]")
        if field.evaluate("field => field.tagName") == "SELECT":
            field.select_option(value)
        else:
            field.fill(value)
    page.locator("#settings > summary").click()


def reply(server: Server, question: str, **fields: object) -> dict[str, Any]:
    """Return the response of the API to the same question."""
    body = {"model": "tiny-llada", "messages": [{"role": "user", "content": question}], **fields}
    response = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=30)
    return dict(response.json())


def answered(page: Page) -> str:
    """The text of the latest answer, once all of it is there."""
    expect(page.locator("article").last.locator(".replay")).to_be_visible()
    return page.locator(".answer").last.text_content() or ""


def canned(*texts: str) -> Callable[[Route], None]:
    """A server whose model answers these, one token for each text."""
    tokens = [{"position": position, "text": text} for position, text in enumerate(texts)]
    lane = {"id": 0, "parent": None, "role": "refine", "start": 0, "end": len(texts) + 1, "fate": "live"}
    step = {"step": 0, "computed": [0, 1], "refresh": False, "lanes": [{**lane, "tokens": [*texts, None]}]}
    lanes = {"choices": [{"delta": {}, "finish_reason": None}], "lanes": {**step, "commits": tokens}}
    delta = {"choices": [{"delta": {"content": "".join(texts)}, "finish_reason": "stop"}]}
    stream = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in (lanes, delta)) + "data: [DONE]\n\n"
    return lambda route: route.fulfill(content_type="text/event-stream", body=stream)


def test_an_answer_is_seen_to_grow_and_fork_and_is_the_api_s(visit: Open, server: Server) -> None:
    said = reply(server, CODE)
    usage = said["usage"]
    details = usage["completion_tokens_details"]
    assert details["forks"]
    page = visit()
    page.evaluate(
        "() => { window.states = []; new MutationObserver(() => {"
        " const canvas = document.querySelector('.canvas');"
        " if (canvas) states.push([canvas.innerHTML, canvas.querySelectorAll('.open').length]);"
        "}).observe(document.getElementById('turns'), { childList: true, subtree: true }) }"
    )
    ask(page, CODE)
    expect(page.locator(".canvas .lane.forked").first).to_be_visible()
    expect(page.locator(".canvas .lane.refine").first).to_be_visible()
    assert answered(page) == said["choices"][0]["message"]["content"]
    states = page.evaluate("states")
    assert len({markup for markup, _ in states}) >= details["forwards"]
    assert len({places for _, places in states}) > 2, "places fill"
    assert page.locator(".score .fork").count() == details["forks"]
    speed = page.locator(".speed").text_content() or ""
    assert f"{usage['completion_tokens']} tokens" in speed
    assert f"{details['forwards']} forwards" in speed
    assert f"{usage['completion_tokens'] / details['forwards']:.1f} tokens per forward" in speed
    assert re.search(r"\d+ tokens/s .* first text after \d+ ms", speed)
    assert page.locator("#spoken").text_content() == said["choices"][0]["message"]["content"], "screen readers hear it"


def test_steps_can_be_looked_at_again(visit: Open) -> None:
    page = visit(reduced_motion="reduce")
    ask(page, CODE)
    text = answered(page)
    slider = page.get_by_label("Step of this answer")
    slider.focus()
    page.keyboard.press("Home")
    expect(page.locator(".canvas .lane")).to_have_count(1)
    expect(slider).to_have_attribute("aria-valuetext", re.compile("Step 1: .*lane 0 generates"))
    page.keyboard.press("End")
    expect(page.locator(".canvas .lane")).to_have_count(0)
    assert page.locator(".answer").text_content() == text
    page.get_by_role("button", name="Replay").click()
    expect(page.locator(".canvas .lane.forked").first).to_be_visible()


def test_a_trace_is_drawn_as_the_page_draws_an_answer(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "trace.html"
    subprocess.run([*ASYNCLANE, "trace", CODE, "--out", str(path)], env=environment(), check=True, capture_output=True)
    page, errors = browser.new_page(), list[str]()
    page.on("console", lambda message: errors.append(message.text))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(path.as_uri())
    assert "def count_even" in answered(page)
    forks = re.search(r"(\d+) forks", page.locator(".speed").text_content() or "")
    assert forks is not None
    assert page.locator(".score .fork").count() == int(forks[1]) > 0
    page.get_by_label("Step of this answer").fill("0")
    expect(page.locator(".canvas .lane")).to_have_count(1)
    page.get_by_role("button", name="Replay").click()
    expect(page.locator(".canvas .lane.forked").first).to_be_visible()
    assert errors == []
    page.close()


@pytest.mark.parametrize("how", ["the button", "Escape"])
def test_a_stopped_answer_keeps_its_text_and_costs_no_more(visit: Open, server: Server, how: str) -> None:
    page = visit()
    choose(page, decoder="llada", early_stop="false", max_tokens="256")
    ask(page, STORY)
    expect(page.locator(".speed")).to_contain_text("first text", timeout=15_000)
    stop = page.get_by_role("button", name="Stop")
    if how == "Escape":
        page.keyboard.press("Escape")
    else:
        stop.click()
    expect(stop).to_be_hidden()
    expect(page.locator(".note")).to_have_text("Stopped.")
    page.keyboard.press("Escape")  # what is left of the slow view
    assert answered(page) == (page.locator("#spoken").text_content() or "").removesuffix("Stopped.") != ""
    for _ in range(100):
        metrics = httpx.get(f"{server.url}/metrics").text
        if "asynclane_running_requests 0.0" in metrics:
            break
        page.wait_for_timeout(20)
    assert "asynclane_running_requests 0.0" in metrics


def test_settings_are_sent(visit: Open, server: Server) -> None:
    settings = {"decoder": "fast-dllm", "threshold": 0.7, "temperature": 0.9, "seed": 11, "max_tokens": 24}
    page = visit(reduced_motion="reduce")
    choose(page, **{name: str(value) for name, value in settings.items()}, system="You are brief.")
    with page.expect_request("**/v1/chat/completions") as request:
        ask(page, STORY)
    messages = [{"role": "system", "content": "You are brief."}, {"role": "user", "content": STORY}]
    body = {"messages": messages, **settings}
    assert request.value.post_data_json.items() >= body.items()
    assert answered(page) == reply(server, STORY, **body)["choices"][0]["message"]["content"]
    expect(page.locator("#chosen")).to_have_text("fast-dllm, temperature 0.9, seed 11, max_tokens 24, threshold 0.7")


@pytest.mark.parametrize(
    "setting",
    [{"threshold": 3}, {"seed": "12345678901234567890"}, {"temperature": "hot"}, {"max_tokens": 5000}],
    ids=str,
)
def test_a_refusal_is_shown_in_the_server_s_words_and_the_question_is_kept(
    visit: Open, server: Server, setting: dict[str, object]
) -> None:
    page = visit(refusals=1)
    choose(page, **{name: str(value) for name, value in setting.items()})
    ask(page, PARIS)
    expect(page.get_by_role("alert")).to_have_text(reply(server, PARIS, **setting)["error"]["message"])
    expect(page.get_by_label("Message")).to_have_value(PARIS)
    expect(page.locator("article")).to_have_count(0)


def test_a_key_is_requested_where_the_server_needs_one(visit: Open) -> None:
    guarded = start_server("--api-key", "open-sesame")
    try:
        page = visit(guarded.url, refusals=2, reduced_motion="reduce")
        key = page.get_by_label("API key")
        expect(key).to_be_focused()
        page.keyboard.type("wrong")
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert")).to_contain_text("wrong API key")
        key.fill("open-sesame")
        page.keyboard.press("Enter")
        expect(key).to_be_hidden()
        ask(page, PARIS)
        assert answered(page) == "The capital of France is Paris."
    finally:
        stop_server(guarded)


def test_text_is_text_and_fits_a_phone(visit: Open) -> None:
    """Markup, endless words, right-to-left text and emoji, from the user and from the model."""
    page = visit(viewport=PHONE, reduced_motion="reduce")
    tokens = (HOSTILE, "\n```html\n", "<b>x</b>" * 60, "\n```\n", HOSTILE)
    page.route("**/v1/chat/completions", canned(*tokens))
    ask(page, HOSTILE)
    assert answered(page) == "".join(tokens)
    assert page.locator(".question").text_content() == HOSTILE
    assert page.locator("article :is(img, script, b)").count() == 0
    page.get_by_label("Step of this answer").fill("0")
    expect(page.locator(".canvas .fresh")).to_have_count(len(tokens))
    assert page.locator("article :is(img, script)").count() == 0
    page.locator("#settings > summary").click()
    page.locator("#welcome > summary").click()
    widths = page.evaluate("[...document.querySelectorAll('body *')].map(e => e.getBoundingClientRect().right)")
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    assert max(widths) <= PHONE["width"]


def test_fifty_messages_go_back_and_forth(visit: Open) -> None:
    page = visit(viewport=PHONE, reduced_motion="reduce")
    page.route("**/v1/chat/completions", canned("Yes", ", it ", "is."))
    for number in range(24):
        ask(page, f"Message {number}")
        expect(page.locator(".replay:visible")).to_have_count(number + 1)
    with page.expect_request("**/v1/chat/completions") as request:
        ask(page, "The last one")
    assert len(request.value.post_data_json["messages"]) == 49
    page.locator("#settings > summary").click()
    page.get_by_label("Send the conversation so far").uncheck()
    with page.expect_request("**/v1/chat/completions") as request:
        ask(page, "The last one")
    assert len(request.value.post_data_json["messages"]) == 1
    assert answered(page) == "Yes, it is."
    expect(page.get_by_text("The last one").last).to_be_in_viewport()
    page.get_by_role("button", name="New chat").click()
    expect(page.locator("article")).to_have_count(0)


def test_an_answer_that_breaks_off_keeps_what_came(visit: Open) -> None:
    page = visit()
    error = {"error": {"message": "the step failed", "type": "server_error", "param": None, "code": None}}
    chunk = {"choices": [{"delta": {"content": "So far"}, "finish_reason": None}]}
    stream = f"data: {json.dumps(chunk)}\n\nevent: error\ndata: {json.dumps(error)}\n\n"
    page.route("**/v1/chat/completions", lambda route: route.fulfill(body=stream))
    ask(page, PARIS)
    expect(page.get_by_role("alert")).to_have_text("the step failed")
    expect(page.locator(".answer")).to_have_text("So far")
    expect(page.locator(".note")).to_have_text("the step failed")


def test_it_follows_the_reader_s_colours_and_preference_for_calm(visit: Open) -> None:
    colors = {}
    for scheme in ("light", "dark"):
        page = visit(color_scheme=scheme, reduced_motion="reduce")
        color = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
        colors[scheme] = sum(map(int, re.findall(r"\d+", color)[:3]))
    assert colors["dark"] < 150 < 600 < colors["light"]
    assert page.evaluate("document.querySelector('#pace').value") == "live"
    ask(page, PARIS)
    assert "Paris" in answered(page)
    page.get_by_label("Step of this answer").fill("0")
    assert page.locator(".canvas .fresh").first.evaluate("word => getComputedStyle(word).animationName") == "none"


def test_the_keyboard_alone_does_it_all(visit: Open) -> None:
    page = visit(reduced_motion="reduce")
    expect(page.get_by_label("Message")).to_be_focused()
    seen = []
    for _ in range(7):
        page.keyboard.press("Shift+Tab")
        style = "e => [e.textContent.trim().split(' ')[0], getComputedStyle(e).outlineStyle]"
        name, outline = page.evaluate(f"({style})(document.activeElement)")
        assert outline == "solid", f"focus on {name} is not seen"
        seen.append(name)
    assert seen == ["Tell", "Ben", "Write", "How", "Settings", "New", "To"]
    page.keyboard.press("Enter")  # "To the message"
    page.keyboard.type("What is")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("the capital of France?")
    page.keyboard.press("Enter")
    answered(page)
    assert page.locator(".question").text_content() == "What is\nthe capital of France?"
    expect(page.get_by_label("Message")).to_be_focused()
