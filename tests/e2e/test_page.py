"""The chat page in a real browser, against the real server with the embedded model.

Skipped where there is no Chromium, unless REQUIRE_BROWSER is set, as it is in CI.
"""

from __future__ import annotations

import base64
import json
import math
import re
import subprocess
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page, Route, expect

from asynclane.server.cli import main as cli

from ..support.processes import ASYNCLANE
from ..support.scale import LONG, part
from ..support.servers import Server
from ..support.tools import WEATHER
from .browser import CODE, PARIS, PHONE, STORY, Open, answered, ask, button, canned, reply
from .conftest import KEY

HOSTILE = (
    "<img src=x onerror=alert(1)><script>alert(2)</script></p><b>loud</b> & &amp; \u202e"
    + "unbreakable" * 80
    + " \u0645\u0631\u062d\u0628\u0627 \u05e9\u05dc\u05d5\u05dd \U0001f468\u200d\U0001f469\u200d\U0001f467 \u4f60\u597d"
)
# Notes when text comes out of the network, and what a reader sees in each frame.
WATCH = """
window.came = []; window.seen = [];
const read = ReadableStreamDefaultReader.prototype.read;
let text = "";
ReadableStreamDefaultReader.prototype.read = async function () {
  const got = await read.call(this);
  if (typeof got.value === "string") {
    for (const [, data] of got.value.matchAll(/^data: (\\{.*)$/gm)) {
      text += JSON.parse(data).choices[0]?.delta.content ?? "";
    }
    if (text && came.at(-1)?.[1] !== text) came.push([performance.now(), text]);
  }
  return got;
};
const look = () => {
  const textOf = (name) => document.querySelector(`#turns ${name}`)?.textContent;
  const shown = textOf(".canvas") || textOf(".answer");
  if (shown && seen.at(-1)?.[1] !== shown) seen.push([performance.now(), shown]);
  requestAnimationFrame(look);
};
requestAnimationFrame(look);
"""
DELAY_MS = 300
WEATHER_QUESTION = "What is the weather in Paris?"

pytestmark = pytest.mark.browser


def choose(page: Page, **settings: str) -> None:
    """Settings by the ids of their fields."""
    button(page, "Settings").click()
    for name, value in settings.items():
        field = page.locator(f"#settings [id={name}]")
        if field.evaluate("field => field.tagName") == "SELECT":
            field.select_option(value)
        else:
            field.fill(value)
    button(page, "Done").click()


@pytest.mark.parametrize("size", [{"width": 1280, "height": 720}, PHONE], ids=["desk", "phone"])
def test_the_page_opens_at_its_top(visit: Open, size: dict[str, int]) -> None:
    page = visit(viewport=size)
    expect(page.locator("#race")).to_be_visible()
    page.wait_for_timeout(300)
    assert page.evaluate("scrollY") == 0
    expect(page.get_by_label("Message")).to_be_in_viewport()


def test_text_is_shown_as_soon_as_it_comes(visit: Open) -> None:
    """Each text that arrives is on the page within the delay; words alone count, since Markdown drops marks."""
    page = visit(script=WATCH)
    ask(page, STORY)
    answered(page)
    page.wait_for_timeout(DELAY_MS)
    came, seen = page.evaluate("[came, seen]")
    assert len(came) > 1, "it streams"
    delays = []
    for at, text in came:
        words = re.sub(r"\W", "", text)
        shown = [moment for moment, on_page in seen if re.sub(r"\W", "", on_page).startswith(words)]
        assert shown, f"never shown: {text!r}"
        delays.append(shown[0] - at)
    assert max(delays) < DELAY_MS, delays


def test_a_model_without_lanes_and_probabilities_is_answered(visit: Open) -> None:
    """Both are refused as DiffusionGemma's are."""

    def refuse(route: Route) -> None:
        body = route.request.post_data_json
        wanted = {"logprobs": body.get("logprobs"), "include_lanes": body["stream_options"].get("include_lanes")}
        name = next((name for name, given in wanted.items() if given), None)
        if name is None:
            route.continue_()
        else:
            error = {"message": f"{name} is not for this model: its canvases are denoised"}
            route.fulfill(status=400, json={"error": error})

    page = visit(refusals=2)
    page.route("**/v1/chat/completions", refuse)
    ask(page, PARIS)
    expect(page.locator("#turns .answer")).to_have_text("The capital of France is Paris.")
    expect(page.locator("#turns .speed")).to_contain_text("forward")
    expect(page.locator("#turns .replay")).to_be_hidden()
    expect(button(page, "Regenerate")).to_be_visible()
    expect(button(page, "Share replay")).to_be_hidden()


def test_an_answer_is_seen_to_grow_and_fork_and_is_the_api_s(visit: Open, server: Server) -> None:
    said = reply(server, CODE)
    usage = said["usage"]
    details = usage["completion_tokens_details"]
    assert details["forks"]
    page = visit()
    page.evaluate(
        "() => { window.states = []; new MutationObserver(() => {"
        " const canvas = document.querySelector('#turns .canvas');"
        " if (canvas) states.push([canvas.innerHTML, canvas.querySelectorAll('.open').length]);"
        "}).observe(document.getElementById('turns'), { childList: true, subtree: true }) }"
    )
    choose(page, pace="slow")
    ask(page, CODE)
    expect(page.locator(".canvas .lane.forked").first).to_be_visible()
    expect(page.locator(".canvas .lane.refine").first).to_be_visible()
    written = answered(page)
    text = said["choices"][0]["message"]["content"]
    assert all(line.strip("`") in written for line in text.splitlines() if not line.startswith("```"))
    states = page.evaluate("states")
    assert len({markup for markup, _ in states}) >= details["forwards"]
    assert len({places for _, places in states}) > 2, "places fill"
    assert page.locator(".score .fork").count() == details["forks"]
    speed = page.locator(".speed").text_content() or ""
    assert f"{usage['completion_tokens']} tokens" in speed
    assert f"{details['forwards']} forwards" in speed
    assert f"{usage['completion_tokens'] / details['forwards']:.1f} tokens per forward" in speed
    assert re.search(r"\d+ tokens/s .* first text after \d+ ms", speed)
    assert page.locator("#spoken").text_content() == text, "screen readers hear it"


def test_steps_can_be_looked_at_again(visit: Open) -> None:
    page = visit(reduced_motion="reduce")
    ask(page, CODE)
    text = answered(page)
    slider = page.get_by_label("Step of this answer")
    slider.focus()
    page.keyboard.press("Home")
    expect(page.locator("#turns .canvas .lane")).to_have_count(1)
    expect(slider).to_have_attribute("aria-valuetext", re.compile("Step 1: .*lane 0 generates"))
    page.keyboard.press("End")
    expect(page.locator("#turns .canvas .lane")).to_have_count(0)
    assert page.locator(".answer").text_content() == text
    button(page, "Replay").click()
    expect(page.locator("#turns .canvas .lane.forked").first).to_be_visible()


def test_a_token_knows_its_step_its_lane_and_its_confidence(visit: Open, server: Server) -> None:
    scores = reply(server, CODE, logprobs=True)["choices"][0]["logprobs"]["content"]
    page = visit(reduced_motion="reduce")
    ask(page, CODE)
    answered(page)
    button(page, "Tokens").click()
    tokens = page.locator(".token")
    expect(tokens).to_have_count(len(scores))
    steps = int(re.findall(r"(\d+) forward", page.locator(".speed").text_content() or "")[0])
    words = [number for number, score in enumerate(scores) if score["token"].strip()]
    for number in (words[0], words[len(words) // 2], words[-1]):
        tokens.nth(number).hover()
        about = page.locator("article .caption").last.text_content() or ""
        assert f"step {scores[number]['step'] + 1} of {steps}" in about
        assert re.search(r"lane \d+ \((generate|refine)\)|ahead of the lanes", about)
        confidence = float(re.findall(r"confidence ([\d.]+) %", about)[0])
        assert confidence == pytest.approx(100 * math.exp(scores[number]["logprob"]), abs=0.1)
    page.keyboard.press("Home")
    expect(page.get_by_role("option", selected=True)).to_have_text(scores[0]["token"])
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("option", selected=True)).to_have_accessible_name(re.compile("step .* confidence"))
    button(page, "Tokens").click()
    expect(tokens.first).to_be_hidden()
    expect(page.locator(".answer")).to_be_visible()


def test_a_decoder_that_knows_no_confidence_answers_all_the_same(visit: Open) -> None:
    page = visit(reduced_motion="reduce", refusals=1)
    expect(page.locator("#decoder")).not_to_be_empty()
    choose(page, decoder="lopa", max_tokens="24")
    ask(page, PARIS)
    assert "Paris" in answered(page)
    button(page, "Tokens").click()
    page.locator(".token").first.hover()
    expect(page.locator("article .caption").last).to_have_text(re.compile(r"step 1 of \d+ · lane 0 \(\w+\)$"))


def test_a_trace_is_drawn_as_the_page_draws_an_answer(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "trace.html"
    with ThreadPoolExecutor(1) as pool:  # an event loop of Playwright's runs in this thread
        assert pool.submit(cli.main, ["trace", CODE, "--model", "tiny-llada", "--out", str(path)]).result() == 0
    page, errors = browser.new_page(), list[str]()
    page.on("console", lambda message: errors.append(message.text))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(path.as_uri())
    expect(page.locator(".answer")).to_contain_text("def count_even")
    forks = re.search(r"(\d+) forks", page.locator(".speed").text_content() or "")
    assert forks is not None
    assert page.locator(".score .fork").count() == int(forks[1]) > 0
    page.get_by_label("Step of this answer").fill("0")
    expect(page.locator(".canvas .lane")).to_have_count(1)
    button(page, "Tokens").click()
    page.locator(".token").first.hover()
    expect(page.locator(".caption")).to_contain_text("step ")
    button(page, "Replay").click()
    expect(page.locator(".canvas .lane.forked").first).to_be_visible()
    assert errors == []
    page.close()


@pytest.mark.parametrize("how", ["the button", "Escape"])
def test_a_stopped_answer_keeps_its_text_and_costs_no_more(visit: Open, server: Server, how: str) -> None:
    page = visit()
    choose(page, decoder="llada", early_stop="false", max_tokens="256")
    ask(page, STORY)
    expect(page.locator(".speed")).to_contain_text("first text", timeout=15_000)
    stop = button(page, "Stop")
    if how == "Escape":
        page.keyboard.press("Escape")
    else:
        stop.click()
    expect(stop).to_be_hidden()
    expect(page.locator(".note")).to_have_text("Stopped.")
    spoken = (page.locator("#spoken").text_content() or "").removesuffix("Stopped.")
    assert answered(page).split() == spoken.split() != []
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
    said = reply(server, STORY, **body)["choices"][0]["message"]["content"]
    assert answered(page).split() == said.split()
    expect(page.locator("#chosen")).to_have_text("fast-dllm, temperature 0.9, seed 11, max_tokens 24, threshold 0.7")


def test_each_setting_has_a_sentence_and_its_range(visit: Open) -> None:
    page = visit()
    button(page, "Settings").click()
    threshold = page.locator("#threshold")
    expect(threshold).to_have_attribute("placeholder", "0.95")
    expect(threshold).to_have_accessible_description(re.compile(r"^A token commits .*\. *0 to 1\.$"))
    expect(page.locator("#lookahead")).to_have_accessible_description(re.compile(r"0 to 4096, canvas\.$"))
    expect(page.locator("#temperature")).to_have_accessible_description(re.compile(r"0 to 2\.$"))
    rules = page.locator("#rule-words option").evaluate_all("options => options.map(option => option.value)")
    listed = subprocess.run([*ASYNCLANE, "decoders", "asynclane"], check=True, capture_output=True, text=True).stdout
    row = re.search(r"\| `rule` \|[^|]*\| (.*) \|", listed)
    assert row is not None
    assert rules == row[1].split(", "), "those that the decoder takes, and they need not be typed"
    for value, invalid in (("7", "true"), ("hot", "true"), ("1.5", "false"), ("", "false")):
        page.locator("#temperature").fill(value)
        expect(page.locator("#temperature")).to_have_attribute("aria-invalid", invalid)
    for value, invalid in (("leap", "true"), ("klass", "false"), ("", "false")):
        page.locator("#rule").fill(value)
        expect(page.locator("#rule")).to_have_attribute("aria-invalid", invalid)
    for field in page.locator("#settings .field").all():
        assert re.match(r"\w.+[.]", field.locator(".about").text_content() or ""), field.text_content()


def test_a_refusal_is_shown_in_the_server_s_words_and_the_question_is_kept(visit: Open, server: Server) -> None:
    wrong = {"threshold": 3, "seed": "12345678901234567890", "temperature": "hot", "max_tokens": 5000}
    page = visit(refusals=len(wrong))
    expect(page.locator("#decoder")).not_to_be_empty()
    for name, value in wrong.items():
        choose(page, **{name: str(value)})
        ask(page, PARIS)
        expect(page.get_by_role("alert")).to_have_text(reply(server, PARIS, **{name: value})["error"]["message"])
        expect(page.get_by_label("Message")).to_have_value(PARIS)
        expect(page.locator("#turns article")).to_have_count(0)
        choose(page, **{name: ""})


def test_a_key_is_requested_where_the_server_needs_one(visit: Open, chat_server: Server) -> None:
    page = visit(chat_server.url, refusals=2, reduced_motion="reduce")
    key = page.get_by_label("API key")
    expect(key).to_be_focused()
    page.keyboard.type("wrong")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("wrong API key")
    key.fill(KEY)
    page.keyboard.press("Enter")
    expect(key).to_be_hidden()
    ask(page, PARIS)
    assert answered(page) == "The capital of France is Paris."


def test_text_is_text_and_fits_a_phone(visit: Open) -> None:
    """Markup, endless words, right-to-left text and emoji, from the user and from the model."""
    page = visit(viewport=PHONE, reduced_motion="reduce")
    links = "[go](javascript:alert(3)) ![i](//x/y.png)"
    tokens = (HOSTILE, "\n```html\n", "<b>x</b>" * 60, "\n```\n", HOSTILE, f"\n{links}")
    page.route("**/v1/chat/completions", canned(*tokens))
    ask(page, HOSTILE)
    text = answered(page)
    assert text.count(HOSTILE) == 2
    assert "<b>x</b>" * 60 in text
    assert links in text, "such links stay letters"
    assert page.locator(".question").text_content() == HOSTILE
    assert page.locator("article :is(img, script, b, a)").count() == 0
    page.get_by_label("Step of this answer").fill("0")
    expect(page.locator("#turns .canvas .fresh")).to_have_count(len(tokens))
    assert page.locator("article :is(img, script)").count() == 0
    button(page, "New chat").click()
    page.locator("#legend > summary").click()
    for opener in (None, "Settings", "Chats"):
        if opener is not None:
            button(page, opener).click()
        widths = page.evaluate(
            "[...document.querySelectorAll('body *')].filter(e => !e.closest('.examples'))"
            ".map(e => e.getBoundingClientRect().right)"
        )
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
        assert max(widths) <= PHONE["width"]
        page.keyboard.press("Escape")


def test_markdown_is_shown_as_it_is_meant(visit: Open) -> None:
    page = visit(reduced_motion="reduce", permissions=["clipboard-read", "clipboard-write"])
    code = 'def f(x):\n    return "a < b"\n'
    prose = "# Head\nSome **bold**, `code` & [a link](https://example.org/).\n\n1. one\n2. two\n"
    text = f"{prose}\n```python\n{code}```\n\n|a|b|\n|-|-|\n|1|2|"
    page.route("**/v1/chat/completions", canned(text))
    ask(page, PARIS)
    answered(page)
    answer = page.locator(".answer")
    expect(answer.get_by_role("heading", name="Head")).to_be_visible()
    expect(answer.locator("strong")).to_have_text("bold")
    expect(answer.locator("ol > li")).to_have_text(["one", "two"])
    expect(answer.locator("td")).to_have_text(["1", "2"])
    expect(answer.get_by_role("link", name="a link")).to_have_attribute("rel", re.compile("noopener"))
    expect(answer.locator("pre .hl-keyword")).to_have_text(["def", "return"])
    assert answer.locator("pre").text_content() == code.rstrip("\n")
    button(page, "Copy the code").click()
    assert page.evaluate("navigator.clipboard.readText()") == code.rstrip("\n")
    expect(answer.get_by_text("Copied")).to_be_visible()
    button(page, "Copy").click()
    expect(page.locator(".actions").get_by_text("Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == text


def test_an_answer_can_be_written_again_and_a_question_changed(visit: Open) -> None:
    page = visit(reduced_motion="reduce")
    page.route("**/v1/chat/completions", canned("First."))
    for question in ("One", "Two", "Three"):
        ask(page, question)
        assert answered(page) == "First."
    page.unroute("**/v1/chat/completions")
    page.route("**/v1/chat/completions", canned("Second."))
    with page.expect_request("**/v1/chat/completions") as request:
        page.get_by_role("button", name="Regenerate").click()
    assert [message["content"] for message in request.value.post_data_json["messages"]] == [
        *("One", "First.", "Two", "First.", "Three"),
    ]
    expect(page.locator(".answer")).to_have_text(["First.", "First.", "Second."])
    button(page, "Edit").nth(1).click()
    expect(page.get_by_label("Message")).to_have_value("Two")
    page.keyboard.press("Escape")
    expect(page.get_by_label("Message")).to_have_value("")
    expect(page.locator("#turns article")).to_have_count(3)
    button(page, "Edit").nth(1).click()
    with page.expect_request("**/v1/chat/completions") as request:
        ask(page, "Another")
    assert [message["content"] for message in request.value.post_data_json["messages"]] == ["One", "First.", "Another"]
    expect(page.locator(".question")).to_have_text(["One", "Another"])


def test_chats_are_kept_in_this_browser(visit: Open) -> None:
    page = visit(reduced_motion="reduce")
    page.route("**/v1/chat/completions", canned("Kept."))
    for question in ("Alpha", "Beta"):
        ask(page, question)
        assert answered(page) == "Kept."
    button(page, "New chat").click()
    expect(page.locator("#turns article")).to_have_count(0)
    ask(page, "Gamma")
    answered(page)
    page.reload()
    expect(page.locator("#race")).to_be_visible()
    button(page, "Chats").click()
    expect(page.locator("#kept .opener")).to_have_text([re.compile("^Gamma"), re.compile("^Alpha")])
    page.locator("#kept .opener").last.click()
    expect(page.locator(".question")).to_have_text(["Alpha", "Beta"])
    expect(page.locator(".answer")).to_have_text(["Kept.", "Kept."])
    with page.expect_request("**/v1/chat/completions") as request:
        ask(page, "Delta")
    assert len(request.value.post_data_json["messages"]) == 5
    answered(page)
    button(page, "Chats").click()
    expect(page.locator("#kept .opener")).to_have_text([re.compile("^Alpha"), re.compile("^Gamma")])
    button(page, "Delete the chat: Gamma").click()
    expect(page.locator("#kept .opener")).to_have_text([re.compile("^Alpha")])
    button(page, "Delete all").click()
    expect(page.locator("#kept")).to_have_text("There are none so far.")
    assert page.evaluate("JSON.parse(localStorage['asynclane.chats'])") == []


@pytest.mark.parametrize(
    "script",
    [
        "Object.defineProperty(window, 'localStorage', { get() { throw new DOMException('off', 'SecurityError') } })",
        "Storage.prototype.setItem = () => { throw new DOMException('full', 'QuotaExceededError') }",
        'localStorage.setItem(\'asynclane.chats\', \'[{"id": 1}, null, {"id": "x", "at": 1, "turns": [3]}]\')',
        "localStorage.setItem('asynclane.chats', '{nonsense')",
    ],
    ids=["off", "full", "of other shapes", "spoilt"],
)
def test_the_chat_goes_on_where_none_can_be_kept(visit: Open, script: str) -> None:
    page = visit(reduced_motion="reduce", script=script)
    page.route("**/v1/chat/completions", canned("Yes."))
    ask(page, "Here?")
    assert answered(page) == "Yes."
    button(page, "Chats").click()
    expect(page.locator("#chats")).to_be_visible()


def test_a_replay_can_be_shared_as_a_link(visit: Open) -> None:
    page = visit(reduced_motion="reduce", permissions=["clipboard-read", "clipboard-write"])
    ask(page, CODE)
    text = answered(page)
    button(page, "Share replay").click()
    expect(page.get_by_text("Copied")).to_be_visible()
    link = page.evaluate("navigator.clipboard.readText()")
    assert len(link) < 8000
    other = visit(link, reduced_motion="reduce")
    expect(other.locator(".question")).to_have_text(CODE)
    assert answered(other) == text
    expect(other.locator(".speed")).to_have_text(page.locator(".speed").text_content() or "")
    assert other.locator(".score .fork").count() == page.locator(".score .fork").count() > 0
    button(other, "Tokens").click()
    other.locator(".token").first.hover()
    expect(other.locator("article .caption").last).to_have_text(re.compile("step .* lane .* confidence"))
    button(other, "New chat").click()
    assert "#" not in other.url
    expect(other.locator("#race")).to_be_visible()


def link(content: object) -> str:
    """A link's fragment, as the page would make it."""
    packer = zlib.compressobj(wbits=-15)
    data = packer.compress(json.dumps(content).encode()) + packer.flush()
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


TEXTS = dict.fromkeys(("model", "decoder", "question", "text", "note", "speed"), "x")
LANE = [0, None, 0, 0, 8, 0]


def test_a_broken_replay_is_named(visit: Open, server: Server) -> None:
    page = visit()
    broken = [
        *("", "!!", "AAAA"),
        *map(link, ([], None, {**TEXTS, "steps": [], "confidences": ["1"]}, {**TEXTS, "text": 3, "steps": []})),
        *(
            link({**TEXTS, "confidences": [], "steps": [[[lane], []]]})
            for lane in ([*LANE[:5], 9], [*LANE[:2], "length", *LANE[3:]], [*LANE[:4], 1e9, 0], [])
        ),
        link({**TEXTS, "confidences": [], "steps": [[[], []]] * 6000}),
        link({**TEXTS, "confidences": [], "steps": [], "text": "x" * 5_000_000}),
    ]
    for content in part(broken, 4):
        page.goto("about:blank")
        page.goto(f"{server.url}/#replay={content}")
        expect(page.get_by_role("alert")).to_contain_text("The replay in this link is broken")
        expect(page.locator("#race")).to_be_visible()


@LONG
def test_fifty_messages_go_back_and_forth(visit: Open) -> None:
    page = visit(viewport=PHONE, reduced_motion="reduce")
    page.route("**/v1/chat/completions", canned("Yes", ", it ", "is."))
    for number in range(24):
        ask(page, f"Message {number}")
        expect(page.locator(".replay:visible")).to_have_count(number + 1)
    with page.expect_request("**/v1/chat/completions") as request:
        ask(page, "The last one")
    assert len(request.value.post_data_json["messages"]) == 49
    button(page, "Settings").click()
    page.get_by_label("Send the conversation so far").uncheck()
    button(page, "Done").click()
    with page.expect_request("**/v1/chat/completions") as request:
        ask(page, "The last one")
    assert len(request.value.post_data_json["messages"]) == 1
    assert answered(page) == "Yes, it is."
    expect(page.get_by_text("The last one").last).to_be_in_viewport()
    button(page, "New chat").click()
    expect(page.locator("#turns article")).to_have_count(0)


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


def test_an_answer_is_in_view_at_its_end_unless_the_reader_scrolled_up(visit: Open) -> None:
    page = visit(viewport={"width": 1280, "height": 720}, reduced_motion="reduce")
    page.route("**/v1/chat/completions", canned(*[f"Line {number} of a long answer.\n\n" for number in range(12)]))
    hidden = "document.scrollingElement.scrollHeight - scrollY - innerHeight"
    for number in range(8):
        ask(page, f"Question {number}")
        expect(page.locator(".replay:visible")).to_have_count(number + 1)
    page.wait_for_timeout(200)
    assert page.evaluate(hidden) <= 1
    page.mouse.move(600, 300)
    page.mouse.wheel(0, -900)
    page.wait_for_timeout(300)
    assert page.evaluate(hidden) > 800
    place = page.evaluate("scrollY")
    page.locator("#turns article").last.evaluate("turn => { turn.style.paddingBottom = '600px' }")
    page.wait_for_timeout(200)
    assert page.evaluate("scrollY") == place
    page.evaluate("scrollTo(0, document.scrollingElement.scrollHeight)")
    page.wait_for_timeout(300)
    assert page.evaluate(hidden) <= 1
    page.locator("#turns article").last.evaluate("turn => { turn.style.paddingBottom = '1200px' }")
    page.wait_for_timeout(300)
    assert page.evaluate(hidden) <= 1


def test_a_tool_is_called_and_its_result_sent(visit: Open, open_server: Server) -> None:
    page = visit(open_server.url, reduced_motion="reduce")
    choose(page, tools="[nonsense")
    ask(page, WEATHER_QUESTION)
    expect(page.locator("#error")).to_have_text("The tools in the settings are not a JSON list of functions.")
    expect(page.get_by_label("Message")).to_have_value(WEATHER_QUESTION)
    choose(page, tools=json.dumps([WEATHER["function"]]))
    expect(page.locator("#chosen")).to_have_text("asynclane, tools")
    ask(page, WEATHER_QUESTION)
    assert answered(page) == ""
    expect(page.locator(".call")).to_have_text('get_weather({"city": "Paris"})')
    page.get_by_label("Result of get_weather").fill('{"temperature": 21}')
    button(page, "Send the result").click()
    expect(page.locator("#turns article")).to_have_count(2)
    assert answered(page) == "The temperature is 21."
    expect(page.locator(".question").last).to_have_text('{"temperature": 21}')
    expect(button(page, "Send the result")).to_be_hidden()
    page.reload()
    button(page, "Chats").click()
    page.locator("#kept .opener").first.click()
    expect(page.locator(".call")).to_have_text('get_weather({"city": "Paris"})')
    with page.expect_request("**/v1/chat/completions") as request:
        ask(page, "Thanks!")
    roles = [message["role"] for message in request.value.post_data_json["messages"]]
    assert roles == ["user", "assistant", "tool", "assistant", "user"]
    answered(page)


def test_reasoning_stands_apart_from_the_answer_and_a_call_that_was_cut_off_is_left_out(visit: Open) -> None:
    deltas: list[dict[str, object]] = [
        {"reasoning_content": "<b>Hm</b>"},
        {"reasoning_content": ", Paris."},
        {"content": "Paris."},
        {"tool_calls": [{"index": 0, "id": "call_1", "function": {"name": "now", "arguments": '{"zo'}}]},
    ]
    chunks = [{"choices": [{"delta": delta, "finish_reason": None}]} for delta in deltas]
    chunks.append({"choices": [{"delta": {}, "finish_reason": "length"}]})
    stream = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
    page = visit(reduced_motion="reduce")
    page.route("**/v1/chat/completions", lambda route: route.fulfill(content_type="text/event-stream", body=stream))
    ask(page, PARIS)
    assert answered(page) == "Paris."
    page.get_by_text("Reasoning").click()
    expect(page.locator(".reasoning p")).to_have_text("<b>Hm</b>, Paris.")
    expect(page.locator(".call")).to_have_count(0)


def test_the_lanes_are_explained_beside_an_answer_too(visit: Open) -> None:
    page = visit(reduced_motion="reduce")
    page.route("**/v1/chat/completions", canned("Yes."))
    ask(page, "Here?")
    answered(page)
    page.locator("#legend > summary").click()
    expect(page.locator("#legend .legend")).to_be_visible()


def test_a_question_to_begin_with_is_sent_and_answered_rightly(visit: Open) -> None:
    page = visit(reduced_motion="reduce")
    for name, right in (
        ("The capital of France", "Paris"),
        ("A short story", "Mia"),
        ("A word problem", "23"),
        ("A Python function", "def count_even"),
    ):
        button(page, name).click()
        assert right in answered(page)
        expect(button(page, name)).to_be_hidden()
        button(page, "New chat").click()
        expect(button(page, name)).to_be_visible()


def test_the_title_stands_on_one_line_of_a_small_phone(visit: Open) -> None:
    page = visit(viewport={"width": 360, "height": 640})
    for width in (360, 320):
        page.set_viewport_size({"width": width, "height": 640})
        height, size = page.locator("header h1").evaluate(
            "title => [title.offsetHeight, parseFloat(getComputedStyle(title).fontSize)]"
        )
        assert height < 2 * size
    assert page.evaluate("document.documentElement.scrollWidth") <= width
