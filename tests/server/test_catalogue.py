"""What `asynclane decoders` and docs/decoders.md say of the decoders is what the tables say."""

from __future__ import annotations

from pathlib import Path

import pytest

from asynclane.scheduler.decoders import defaults_of, resolve
from asynclane.scheduler.methods import METHODS
from asynclane.server.catalogue import section, told, told_for
from asynclane.server.cli import main

ROOT = Path(__file__).parents[2]


def test_the_page_in_docs_is_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["decoders", "--markdown"]) == 0
    assert (ROOT / "docs" / "decoders.md").read_text() == capsys.readouterr().out, (
        "run: asynclane decoders --markdown > docs/decoders.md"
    )


@pytest.mark.parametrize("name", METHODS)
def test_a_decoder_names_its_source_and_every_knob(name: str) -> None:
    text = section(name)
    assert METHODS[name].source in text
    assert all(f"| `{knob}` |" in text for knob in defaults_of(name, told_for(name)))


@pytest.mark.parametrize("name", METHODS)
def test_every_part_of_a_decoder_explains_itself(name: str) -> None:
    """Where it is defined: the rule in a paragraph, not only its name."""
    decoder = resolve(name, {}, 64, told_for(name))
    rule = decoder.rule if decoder.judge is None else decoder.judge()
    for part in (decoder.policy, rule, decoder.cache()):
        assert len(told(part)) > 60, type(part)


def test_an_unknown_decoder_is_one_line_that_lists_the_known(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["decoders", "greedy"]) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert all(name in message for name in METHODS)
