"""`asynclane generate` prints an answer; `asynclane trace` writes one page that needs nothing else."""

from __future__ import annotations

import html.parser
import json
import re
from pathlib import Path
from typing import Any

import pytest

from asynclane.scheduler import RequestStats
from asynclane.server.cli import main as cli
from asynclane.server.cli.generate import summary
from asynclane.server.cli.params import parse_params
from asynclane.server.engine.messages import Usage

CODE = "Write a Python function `count_even(numbers)` that returns the number of even numbers in a list."
HOSTILE = "Hi</script><script>alert(1)</script><!-- {{trace}} & \u2028 <img onerror=x>"
FAST = ["--threads", "1", "--max-tokens", "96"]


class Page(html.parser.HTMLParser):
    """Reads a page as a browser would: elements, and what the scripts hold."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.feed(content)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.lasttag == "script" and self.scripts:
            self.scripts[-1] += data

    @property
    def trace(self) -> dict[str, Any]:
        return dict(json.loads(self.scripts[0]))


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("trace"))
        assert cli.main(["trace", CODE, "--model", "tiny-llada", "--knob", "max_lanes=3", *FAST]) == 0
        return Path("trace.html").read_text(encoding="utf-8")


def test_the_page_needs_no_other(content: str) -> None:
    assert not re.search(r"https?:|//[a-z]|@import|url\(", content.replace("// ", ""))
    for tag, attributes in Page(content).elements:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base")
        assert not {"src", "href", "srcset"} & attributes.keys()
    assert "default-src 'none'" in content, "nor may it load one"


def test_the_page_can_be_read_by_everybody(content: str) -> None:
    elements = Page(content).elements
    assert ("html", {"lang": "en"}) in elements
    assert any(attributes.get("name") == "viewport" for _, attributes in elements), "on a phone"
    assert "prefers-color-scheme: dark" in content
    assert any(attributes.get("type") == "range" for _, attributes in elements), "by keyboard"
    assert any("aria-live" in attributes for _, attributes in elements), "and by ear"


def test_the_page_holds_the_answer_its_cost_and_every_step(content: str) -> None:
    trace = Page(content).trace
    canvas = {commit["position"]: commit["text"] for step in trace["steps"] for commit in step["commits"]}
    tokens, forwards, forks = (
        int(re.findall(rf"(\d+) {noun}s", trace["summary"])[0]) for noun in ("token", "forward", "fork")
    )
    assert "".join(canvas[position] for position in range(tokens)) == trace["text"] != ""
    assert len(trace["steps"]) == forwards
    assert (trace["prompt"], trace["decoder"], trace["params"]) == (CODE, "asynclane", {"max_lanes": 3})
    assert f"{tokens} tokens in {forwards} forwards: {tokens / forwards:.1f} tokens per forward" in trace["summary"]
    assert forks > 0


def test_a_prompt_that_is_markup_stays_text(tmp_path: Path, content: str) -> None:
    path = tmp_path / "page.html"
    assert cli.main(["trace", HOSTILE, "--out", str(path), *FAST]) == 0
    hostile = path.read_text(encoding="utf-8")
    assert Page(hostile).trace["prompt"] == HOSTILE
    assert Page(hostile).elements == Page(content).elements, "the same elements, whatever the prompt"
    assert "alert(1)</script>" not in hostile


def test_live_into_a_pipe_is_a_line_for_each_step_and_then_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["trace", CODE, "--live", *FAST]) == 0
    traced = capsys.readouterr().out
    assert cli.main(["generate", CODE, *FAST]) == 0
    answer, cost = capsys.readouterr().out.rsplit("\n\n", 1)
    steps, text, cost_line = traced.split("\n\n")
    assert text == answer
    forwards = int(re.findall(r"in (\d+) forwards", cost)[0])
    assert [line.split(":")[0] for line in steps.splitlines()] == [f"step {n}" for n in range(forwards)]
    assert f"in {forwards} forwards" in cost_line
    assert "\x1b" not in traced
    assert not list(tmp_path.iterdir()), "no page without --out"


@pytest.mark.parametrize(("number", "plural"), [(0, "s"), (1, ""), (2, "s")])
def test_the_summary_of_an_answer_knows_the_singular(number: int, plural: str) -> None:
    stats = RequestStats(computed_tokens=number, forwards=max(1, number), lanes=number, forks=number, refreshes=number)
    line = summary(Usage(number, stats))
    found = re.findall(r"\b(?:token|lane|fork|position|refresh)(\w*)", line.replace("tokens per forward", ""))
    assert found == [plural, plural, plural, plural and "es", plural]
    assert f"{number} token{plural} in " in line
    assert ("1 forward:" in line) == (number < 2)


@pytest.mark.parametrize("command", ["generate", "trace"])
def test_an_empty_prompt_is_refused(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([command, " \n"]) == 2
    assert capsys.readouterr().err == "asynclane: the prompt is empty: give a text to answer\n"


FLAGS = [
    (["--knob", "threshold"], "a parameter is NAME=VALUE, not 'threshold'"),
    (["--knob", "=1"], "a parameter is NAME=VALUE"),
    (["--knob", "factor=1", "--knob", "factor=2"], "'factor' is given twice"),
    (["--knob", "threshold=7"], "threshold must be a number from 0 to 1, not 7"),
    (["--knob", "colour=red"], "decoder 'asynclane' has no parameter 'colour'; it has: steps, threshold, "),
    (["--knob", "treshold=1"], "decoder 'asynclane' has no parameter 'treshold': did you mean 'threshold'?"),
    (["--decoder", "beam"], "beam"),
    (["--page-size", "x"], "--page-size must be a whole number"),
]


@pytest.mark.parametrize(
    ("command", "flags", "message"),
    [
        *(("trace", *each) for each in FLAGS),
        ("trace", ["--out", "/no/such/folder/page.html"], "/no/such/folder"),
        ("generate", *FLAGS[3]),
    ],
)
def test_misuse_is_one_line_and_exit_code_2(
    command: str, flags: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main([command, "Hi", *FAST, *flags]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert message in captured.err
    assert not list(tmp_path.iterdir())


def test_a_parameter_that_is_refused_after_loading_is_one_line(tmp_path: Path, capsys: Any) -> None:
    """Without --max-tokens nothing can be resolved before."""
    flags = ["--threads", "1", "--out", str(tmp_path / "page.html")]
    assert cli.main(["trace", "Hi", *flags, "--knob", "colour=red"]) == 2
    assert "'colour'" in capsys.readouterr().err


def test_parameters_are_read_with_the_type_they_look_like() -> None:
    given = ["a=1", "b=0.5", "c=true", "d=false", "e=dual", "f=x=y"]
    assert parse_params(given) == {"a": 1, "b": 0.5, "c": True, "d": False, "e": "dual", "f": "x=y"}
