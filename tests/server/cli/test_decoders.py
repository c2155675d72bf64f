"""`asynclane decoders` and docs/decoders.md agree with the decoders' table."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from asynclane.bench.quality.field import named
from asynclane.scheduler import ParamError, defaults_of, resolve
from asynclane.scheduler.decoding.registry import DECODERS
from asynclane.scheduler.decoding.summaries import SUMMARIES
from asynclane.server.cli.decoders import described, pattern_for, section
from asynclane.server.cli.main import main

ROOT = Path(__file__).parents[3]
ROW = re.compile(r"\| `([a-z0-9-]+)`[^|]*\| (.*?) \(\[(?:paper|code)\]")


def test_the_page_in_docs_is_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["decoders", "--markdown"]) == 0
    assert (ROOT / "docs" / "decoders.md").read_text() == capsys.readouterr().out, (
        "run: asynclane decoders --markdown > docs/decoders.md"
    )


def test_the_list_says_what_each_decoder_is_in_the_words_of_the_docs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["decoders"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = (ROOT / "docs" / "decoding.md").read_text().splitlines()
    documented = dict(row.groups() for row in map(ROW.match, rows) if row)
    assert dict(line.split(maxsplit=1) for line in lines) == documented
    assert documented.keys() == DECODERS.keys()


@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_names_its_source_and_every_parameter(name: str) -> None:
    text = section(name)
    assert DECODERS[name].source in text
    assert all(f"| `{param}` |" in text for param in defaults_of(name, pattern_for(name)))


@pytest.mark.parametrize("name", DECODERS)
def test_every_part_of_a_decoder_explains_itself(name: str) -> None:
    """A paragraph, not only a name."""
    decoder = resolve(name, {}, 64, pattern_for(name))
    rule = decoder.rule if decoder.host_rule is None else decoder.host_rule()
    parts = decoder.policy, rule, decoder.cache()
    for part in parts if decoder.denoiser is None else (decoder.denoiser,):
        assert len(described(part)) > 60, type(part)


def test_a_value_that_needs_another_parameter_is_listed_and_one_that_is_never_allowed_is_not() -> None:
    asynclane = section("asynclane")
    assert (
        "| `boundary` | auto | auto, prose, code, comma, stride, stable, period, period_comma |" in asynclane
    )  # with stable_steps
    assert "| `cache` | compact | none, prefix, dual, compact," in asynclane  # dual with lookahead
    assert "| `block_length` | 32 | a whole number from 1 to 4096 |" in section("fast-dllm")  # auto is AsyncLane's
    assert "compact" not in section("fast-dllm")


def test_a_wrong_rule_is_refused_with_those_of_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    (listed,) = re.findall(r"^\| `rule` \| - \| (.*) \|$", section("asynclane"), re.MULTILINE)
    assert "wino" not in listed
    wanted = ", ".join(json.dumps(rule) for rule in listed.split(", "))
    with pytest.raises(ParamError, match=f"^rule must be one of {wanted}, not .blockbatch.$"):
        resolve("asynclane", {"rule": "blockbatch"}, 64)
    with pytest.raises(ParamError, match=r'one of "ahd", .*, not "no"'):  # of all, as this model takes no such decoder
        resolve("dsb", {"rule": "no"}, 64, pattern_for("tccf"))
    assert main(["decoders"]) == 0
    assert f"rules for the parameter `rule` of asynclane: {listed}; `decoders NAME`" in capsys.readouterr().err


@pytest.mark.parametrize(("rule", "decoders"), [("editing", ["llada2", "fast-dllm"]), ("entropy", ["d3llm", "d2f"])])
def test_a_rule_that_is_no_decoder_names_those_that_take_it(
    rule: str, decoders: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["decoders", rule]) == 2
    message = capsys.readouterr().err
    assert f"{rule!r} is a commit rule" in message
    assert all(decoder in message for decoder in decoders)
    assert "wino" not in message


def test_an_unknown_decoder_is_one_line_that_lists_the_known(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["decoders", "Fast_dllm"]) == 2
    assert "unknown decoder 'Fast_dllm': did you mean 'fast-dllm'? known: asynclane," in capsys.readouterr().err
    assert main(["decoders", "greedy"]) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert "unknown decoder 'greedy'; known: asynclane," in message
    assert all(name in message for name in DECODERS)


AFTER = "ahd ce d2cache daedal dllm-cache entropy-cache ete leap psd tspd".split()


@pytest.mark.parametrize("name", AFTER)
def test_what_is_not_what_its_paper_describes_comes_after_it_wherever_it_is_named(name: str) -> None:
    assert SUMMARIES[name].startswith("after ")
    assert "Source: after arXiv" in section(name)
    assert named(f"{name}:early_stop=false") == f"{name}:early_stop=false (after)"


def test_a_table_of_figures_says_so_of_rules_too() -> None:
    assert named("asynclane:rule=leap,threshold=0.9") == "asynclane:rule=leap,threshold=0.9 (after)"
    assert [named(name) for name in ("asynclane:rule=credit", "klass")] == ["asynclane:rule=credit", "klass"]
