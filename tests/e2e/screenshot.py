"""Takes the picture of the chat page that docs/lanes.md shows:

.venv/bin/python -m tests.e2e.screenshot docs/chat.png
"""

from __future__ import annotations

import sys
from pathlib import Path

from ..support.servers import start_server, stop_server
from .browser import find_chromium, open_browser

QUESTION = "Write a Python function `count_even(numbers)` that returns the number of even numbers in a list."
STEP = 2  # two lanes at work, one of them just born


def main(path: Path) -> None:
    chromium = find_chromium()
    if chromium is None:
        raise SystemExit("no Chromium found: install one")
    server = start_server()
    try:
        with open_browser(chromium) as browser:
            page = browser.new_page(viewport={"width": 900, "height": 1090}, reduced_motion="reduce")
            page.goto(server.url)
            page.get_by_label("Message").fill(QUESTION)
            page.keyboard.press("Enter")
            page.get_by_label("Step of this answer").fill(str(STEP))
            page.get_by_label("Message").focus()
            page.screenshot(path=path)
    finally:
        stop_server(server)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
