"""The page for everybody: axe-core's checks, the keyboard alone, the reader's colours, a phone."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from ..support.scale import ALL, LONG
from .browser import CODE, PARIS, PHONE, Open, answered, ask, button

AXE = Path(__file__).with_name("node") / "node_modules" / "axe-core" / "axe.min.js"
# Of what passes one node is enough, and no node needs a selector: to find them takes most of the time.
RUN_AXE = "checks => axe.run(document, { runOnly: checks, resultTypes: ['violations'], selectors: false })"
TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def axe() -> str:
    if not AXE.exists():
        assert not os.environ.get("REQUIRE_BROWSER"), f"run `npm ci` in {AXE.parents[2]} first"
        pytest.skip("needs axe-core (npm ci in tests/e2e/node)")
    return AXE.read_text(encoding="utf-8")


# With dark colours nothing but contrast is another, on a small screen as on a large one.
DARK, LIGHT = ("dark", ["color-contrast"], 0), ("light", TAGS, 15)


def check(page: Page, schemes: list[tuple[str, list[str], int]], where: str) -> None:
    for scheme, checks, least in schemes:
        page.emulate_media(color_scheme=scheme)
        found = page.evaluate(RUN_AXE, checks)
        assert len(found["passes"]) > least, "it did check"
        faults = [(fault["impact"], fault["id"], fault["nodes"][0]["html"][:200]) for fault in found["violations"]]
        assert faults == [], (where, scheme)


@pytest.mark.parametrize(
    ("size", "schemes", "raced"),
    [
        ({"width": 1280, "height": 800}, [DARK, LIGHT] if ALL else [DARK], ALL),
        pytest.param(PHONE, [DARK, LIGHT], True, marks=LONG),
    ],
    ids=["desk", "phone"],
)
def test_axe_finds_no_fault(visit: Open, axe: str, size: dict[str, int], schemes: Any, raced: bool) -> None:
    page = visit(bypass_csp=True, reduced_motion="reduce", viewport=size)
    page.evaluate(axe)
    expect(page.locator(".racer")).to_have_count(3)
    page.locator("#legend > summary").click()
    check(page, schemes, "at first")
    if raced:
        button(page, "A capital").click()
        expect(button(page, "In slow motion")).to_be_visible(timeout=60_000)
        check(page, schemes, "after the race")
    ask(page, CODE)
    answered(page)
    expect(page.locator(".hl-keyword").first).to_be_visible()
    check(page, schemes, "an answer")
    page.get_by_label("Step of this answer").fill("1")
    check(page, schemes, "a step")
    button(page, "Tokens").click()
    page.locator(".token").nth(3).click()
    check(page, schemes, "its tokens")
    button(page, "Edit").click()
    check(page, schemes, "an edited question")
    for dialog in ("Settings", "Chats"):
        button(page, dialog).click()
        check(page, schemes, dialog)
        page.keyboard.press("Escape")


def test_it_follows_the_reader_s_colours_and_preference_for_calm(visit: Open) -> None:
    colors = {}
    for scheme in ("light", "dark"):
        page = visit(color_scheme=scheme, reduced_motion="reduce")
        color = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
        colors[scheme] = sum(map(int, re.findall(r"\d+", color)[:3]))
    assert colors["dark"] < 150 < 600 < colors["light"]
    ask(page, PARIS)
    assert "Paris" in answered(page)
    page.get_by_label("Step of this answer").fill("0")
    assert page.locator(".canvas .fresh").first.evaluate("word => getComputedStyle(word).animationName") == "none"


def test_the_keyboard_alone_does_it_all(visit: Open) -> None:
    page = visit(reduced_motion="reduce")
    expect(page.locator(".racer")).to_have_count(3)
    expect(page.get_by_label("Message")).to_be_focused()
    seen = []
    for _ in range(18):
        page.keyboard.press("Shift+Tab")
        style = "e => [e.ariaLabel || e.textContent.trim() || e.id, getComputedStyle(e).outlineStyle]"
        name, outline = page.evaluate(f"({style})(document.activeElement)")
        assert outline == "solid", f"focus on {name} is not seen"
        seen.append(name)
    assert seen == [
        *("A Python function", "A word problem", "A short story", "The capital of France"),
        *("How to read the lanes", "Answer", "Answer", "Answer"),
        *("A capital", "A list", "A sum in words", "A function", "Start the race", "race-prompt"),
        *("New chat", "Settings", "Chats", "To the message"),
    ]
    page.keyboard.press("Enter")  # "To the message"
    page.keyboard.type("What is")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("the capital of France?")
    page.keyboard.press("Enter")
    answered(page)
    assert page.locator(".question").text_content() == "What is\nthe capital of France?"
    expect(page.get_by_label("Message")).to_be_focused()


def test_a_dialog_takes_the_keyboard_and_gives_it_back(visit: Open) -> None:
    page = visit()
    button(page, "Settings").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog", name="Settings")).to_be_visible()
    assert page.evaluate("document.activeElement.closest('dialog').id") == "settings"
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(button(page, "Settings")).to_be_focused()
    button(page, "Chats").click()
    page.mouse.click(5, 5)
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_a_phone_opens_no_keyboard_by_itself(visit: Open) -> None:
    page = visit(viewport=PHONE, has_touch=True, is_mobile=True)
    expect(page.locator(".racer")).to_have_count(3)
    expect(page.get_by_label("Message")).not_to_be_focused()
    assert page.locator(".racer").last.evaluate("e => e.getBoundingClientRect().top") < 2 * PHONE["height"]
