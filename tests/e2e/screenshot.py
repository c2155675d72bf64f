"""Takes the pictures of the page that the documentation shows, into a folder:

.venv/bin/python -m tests.e2e.screenshot docs
"""

from __future__ import annotations

import sys
from pathlib import Path

from playwright.sync_api import Browser, Page, expect

from ..support.servers import start_server, stop_server
from .browser import CODE, answered, ask, button, find_chromium, open_browser

STEP = 2  # two lanes at work, one of them just born


def main(folder: Path) -> None:
    chromium = find_chromium()
    if chromium is None:
        raise SystemExit("no Chromium found: install one")
    server = start_server("--model", "tiny-llada")
    try:
        with open_browser(chromium) as browser:
            race(browser, server.url, folder)
            chat(browser, server.url, folder)
    finally:
        stop_server(server)


def race(browser: Browser, url: str, folder: Path) -> None:
    desk = browser.new_page(viewport={"width": 1180, "height": 970}, reduced_motion="reduce", bypass_csp=True)
    run(desk, url)
    button(desk, "In slow motion").click()
    desk.evaluate("document.activeElement.blur(); scrollTo(0, 0)")
    desk.wait_for_function("document.querySelectorAll('.racer.over').length == 1", polling=20)
    desk.screenshot(path=folder / "race.png")
    phone = browser.new_page(
        viewport={"width": 390, "height": 780},
        color_scheme="dark",
        reduced_motion="reduce",
        has_touch=True,
        is_mobile=True,
    )
    run(phone, url)
    phone.locator(".racers").evaluate("racers => scrollTo(0, racers.offsetTop - 140)")
    phone.screenshot(path=folder / "phone.png")


def run(page: Page, url: str) -> None:
    page.goto(url)
    expect(page.locator(".racer")).to_have_count(3)
    button(page, "Start the race").click()
    expect(button(page, "In slow motion")).to_be_visible(timeout=60_000)


def chat(browser: Browser, url: str, folder: Path) -> None:
    page = browser.new_page(viewport={"width": 900, "height": 930}, reduced_motion="reduce")
    page.goto(url)
    expect(page.locator("#decoder")).not_to_be_empty()
    ask(page, CODE)
    answered(page)
    expect(page.locator(".hl-keyword").first).to_be_visible()
    page.screenshot(path=folder / "chat.png")
    page.get_by_label("Step of this answer").fill(str(STEP))
    page.get_by_label("Message").focus()
    box = page.locator("#turns .canvas").bounding_box()
    assert box is not None
    top = max(box["y"] - 24, 70)
    page.screenshot(path=folder / "steps.png", clip={"x": 40, "y": top, "width": 820, "height": 812 - top})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
