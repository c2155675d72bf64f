"""The race of decoders, which is the page's first view, in a real browser against the real server."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from playwright.sync_api import Page, expect

from ..support.scale import LONG
from ..support.servers import TOM, Server
from .browser import PARIS, STORY, Open, button, reply

RACERS = ("llada", "fast-dllm", "asynclane")
LENGTH = 96

pytestmark = pytest.mark.browser


def numbers(page: Page) -> dict[str, tuple[int, int, float]]:
    """Forwards, tokens a second and seconds of each."""
    found = {}
    for racer in page.locator(".racer").all():
        texts = [racer.locator(f".{name}").text_content() or "" for name in ("forwards", "rate", "time")]
        name = racer.locator("h3").text_content() or ""
        found[name] = int(texts[0]), int(texts[1]), float(texts[2].removesuffix(" s"))
    return found


def finished(page: Page) -> None:
    expect(button(page, "In slow motion")).to_be_visible(timeout=60_000)


@LONG
def test_decoders_race_and_their_counters_are_the_api_s(visit: Open, server: Server) -> None:
    with ThreadPoolExecutor() as pool:
        replies = pool.map(lambda name: reply(server, TOM, decoder=name, max_tokens=LENGTH), RACERS[1:])
        usages = {name: found["usage"] for name, found in zip(RACERS[1:], replies, strict=True)}
    page = visit()
    page.evaluate(
        "() => { window.counts = []; new MutationObserver(() => counts.push("
        "[...document.querySelectorAll('.racer .forwards')].map(e => e.textContent).join())"
        ").observe(document.querySelector('.racers'), { childList: true, subtree: true, characterData: true }) }"
    )
    page.get_by_label("Prompt of the race").fill(TOM)
    button(page, "Start the race").click()
    finished(page)
    result = numbers(page)
    assert list(result) == list(RACERS)
    assert result["llada"][0] > max(result[name][0] for name in usages), "it has a forward for each token"
    for name, usage in usages.items():
        forwards, rate, seconds = result[name]
        assert forwards == usage["completion_tokens_details"]["forwards"]
        assert rate == pytest.approx(usage["completion_tokens"] / seconds, rel=0.05, abs=1)
    assert len(set(page.evaluate("counts"))) > result["asynclane"][0], "they are seen to run"
    order = sorted(RACERS, key=lambda name: result[name][2])
    places = [page.locator(f".racer:has(h3:text-is('{name}')) .place") for name in order]
    assert [place.text_content() for place in places] == ["1st", "2nd", "3rd"]
    expect(page.locator(".result")).to_have_text(re.compile(rf"^{order[0]} {result[order[0]][0]} forwards in "))
    assert (page.locator(".result").text_content() or "") in (page.locator("#spoken").text_content() or "")


@LONG
def test_a_race_can_be_seen_again_slowly(visit: Open) -> None:
    page = visit()
    button(page, "A capital").click()
    expect(page.get_by_label("Prompt of the race")).to_have_value(PARIS)
    finished(page)
    before = numbers(page)
    texts = page.locator(".racer .canvas").all_text_contents()
    button(page, "In slow motion").click()
    page.wait_for_timeout(500)
    assert numbers(page)["llada"][2] < before["llada"][2] / 2
    expect(page.locator(".racer.over")).not_to_have_count(3)
    button(page, "To the end").click()
    expect(page.locator(".racer.over")).to_have_count(3)
    assert numbers(page) == before
    assert page.locator(".racer .canvas").all_text_contents() == texts


@LONG
def test_a_race_gives_way_to_the_next(visit: Open) -> None:
    page = visit()
    button(page, "A function").click()
    expect(page.locator(".racer .forwards").first).not_to_have_text(re.compile("^[\u20130]$"))
    button(page, "A capital").click()
    finished(page)
    expect(page.locator(".racer .place")).to_have_text([re.compile("st|nd|rd")] * 3)
    for text in page.locator(".racer .canvas").all_text_contents():
        assert "Paris" in text
        assert "def" not in text


def test_a_race_can_be_stopped_and_gives_way_to_the_chat(visit: Open) -> None:
    page = visit()
    page.get_by_label("Prompt of the race").fill(STORY)
    button(page, "Start the race").click()
    expect(page.locator(".racer .forwards").first).not_to_have_text(re.compile("^[\u20130]$"))
    button(page, "Stop the race").click()
    expect(page.locator(".racer .place").first).to_have_text("Stopped")
    expect(button(page, "Start the race")).to_be_visible()
    page.get_by_label("Message").fill(PARIS)
    page.keyboard.press("Enter")
    expect(page.locator("#race")).to_be_hidden()
    expect(page.locator(".answer")).to_contain_text("Paris")
    button(page, "New chat").click()
    expect(page.locator("#race")).to_be_visible()


def test_there_is_no_race_of_one(visit: Open, server: Server) -> None:
    page = visit()
    card = page.evaluate("fetch('v1/models').then(answer => answer.json())")
    for number, name in enumerate(RACERS[:2], start=1):
        del card["data"][0]["decoders"][name]
        page.unroute_all()
        page.route("**/v1/models", lambda route: route.fulfill(json=card))
        page.reload()
        expect(page.locator("#decoder")).not_to_be_empty()
        expect(page.locator(".racer")).to_have_count(len(RACERS) - number)
        assert page.locator("#race").is_visible() == (number < 2)


def test_what_the_server_refuses_is_said_where_it_was_to_run(visit: Open) -> None:
    page = visit(refusals=3)
    expect(page.locator(".racer")).to_have_count(3)
    page.get_by_label("Prompt of the race").fill("long " * 5000)
    button(page, "Start the race").click()
    expect(page.locator(".racer .place").first).to_contain_text("tokens")
    expect(button(page, "Start the race")).to_be_visible()


@LONG
def test_the_result_of_a_race_is_in_view(visit: Open) -> None:
    page = visit(viewport={"width": 1366, "height": 657})
    button(page, "A capital").click()
    finished(page)
    expect(page.locator(".result")).not_to_be_empty()
    result, message = page.locator(".finish").bounding_box(), page.locator("#composer").bounding_box()
    assert result
    assert message
    assert result["y"] + result["height"] <= message["y"]
    assert not re.search(r"\b1 forwards", page.locator(".result").text_content() or "")
