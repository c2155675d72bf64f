"""The page in the Firefox that is on this machine. Skipped where there is none."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ..support.scale import LONG
from ..support.servers import Server
from .browser import CODE, reply
from .firefox import Firefox, find_firefox, open_firefox

pytestmark = pytest.mark.browser
ENTER = "\ue007"


@pytest.fixture(scope="module")
def firefox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Firefox]:
    program = find_firefox()
    if program is None:
        pytest.skip("needs a Firefox on the PATH (apt-get install firefox-esr)")
    with open_firefox(program, tmp_path_factory.mktemp("profile")) as firefox:
        yield firefox


@LONG
def test_race_chat_tokens_and_replay_work_in_firefox(firefox: Firefox, server: Server) -> None:
    usage = reply(server, CODE)["usage"]
    firefox.go(server.url)
    firefox.wait("document.querySelectorAll('.racer').length === 3")
    assert firefox.run("scrollY") == 0
    firefox.run("document.querySelector('.go').click()")
    firefox.wait("document.querySelector('.slowly').hidden === false")
    assert firefox.run("document.querySelectorAll('.racer.over .canvas:not(:empty)').length") == 3
    firefox.run("document.getElementById('prompt').focus()")
    firefox.type(CODE + ENTER)
    firefox.wait("document.querySelector('.actions:not([hidden])')")
    firefox.wait("document.querySelector('.answer .hl-keyword')")
    assert f"{usage['completion_tokens']} tokens" in firefox.run("document.querySelector('.speed').textContent")
    firefox.run("document.querySelector('.look').click()")
    assert firefox.run("document.querySelectorAll('.token').length") == usage["completion_tokens"]
    firefox.type("\ue014")  # the right arrow
    firefox.wait("document.querySelector('article:not(.racer) .caption').textContent.includes('confidence')")
    firefox.run(
        "import('./web/replay.js').then(async (replay) => { const link = await replay.linkTo({"
        "model: 'm', decoder: 'd', question: 'q', text: 'Words.', note: '', speed: '', confidences: [],"
        "steps: [{ lanes: [], commits: [{ position: 0, text: 'Words.' }] }] }); location.hash = new URL(link).hash; })"
    )
    firefox.wait("document.querySelector('.shared')")
    assert firefox.run("document.querySelector('.question').textContent") == "q"
    firefox.run("document.getElementById('show-settings').click()")
    firefox.wait("document.querySelector('#settings[open] .range:not(:empty)')")
    assert firefox.complaints == []
