"""Templates: all gaps of a canvas are filled, and nothing that was given is changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from asynclane.bench.quality.holes import holes
from asynclane.models.exec.runner import Runner
from asynclane.scheduler import Outcome, ParamError, Preferences, Vocabulary
from asynclane.scheduler.decoding.registry import DECODERS

from ..support.cases import FEWER, TEXT, Network, network, takes_template
from ..support.driver import Spec, refusal, run
from ..support.scale import ALL, LONG

MASK = TEXT.mask_id
GAPS = holes(21, 4, "name")
BEGUN = "Tom has 12 books. Then he finds 8 books. He has 12"
PARTS = [6, " in all. Ann has", 3, " eggs, and", 12]


def ids(text: str) -> list[int]:
    return TEXT.encode(text, specials=False)


TEMPLATE = [token for part in PARTS for token in (ids(part) if isinstance(part, str) else [MASK] * part)]
ENDLESS = Preferences(min_tokens=len(TEMPLATE) - 12)  # as the server sends it: only the last gap may end
SPEC = Spec(ids(BEGUN), len(TEMPLATE), preferences=ENDLESS, template=TEMPLATE)
WHOLE_CANVAS = [name for name in DECODERS if refusal(name, network("whole-canvas").pattern) is None]
TAKING = [
    name
    for name in WHOLE_CANVAS
    if takes_template(replace(SPEC, decoder=name, params=FEWER.get(name, {})), network("whole-canvas").pattern)
]
# `make test` runs each decoder once, on a small network: half of them with a suffix, half without.
HALVES = (TAKING, TAKING) if ALL else (TAKING[::2], TAKING[1::2])
SMALL_TEMPLATE = [None, None, None, 9, 8, None, None, 10, None, None, None, None]


def short() -> tuple[Network, Spec, list[int]]:
    """The small network, a request with gaps in its vocabulary, and a suffix."""
    net = network("whole-canvas")
    template = [net.vocabulary.mask_id if token is None else token for token in SMALL_TEMPLATE]
    return net, Spec(net.prompts[1], len(template), template=template), [12, 7]


def long() -> tuple[Network, Spec, list[int]]:
    return network("tiny-llada"), SPEC, ids(" Good.")


@pytest.mark.parametrize("request_of", [short, pytest.param(long, marks=LONG)])
@pytest.mark.parametrize(("suffixed", "names"), [*enumerate(HALVES)], ids=["no suffix", "a suffix"])
def test_every_decoder_fills_the_gaps_and_keeps_the_texts(
    request_of: Callable[[], tuple[Network, Spec, list[int]]], suffixed: int, names: list[str]
) -> None:
    net, spec, suffix = request_of()
    spec = replace(spec, suffix=suffix * suffixed, preferences=replace(spec.preferences, ignore_end=True))
    specs = [replace(spec, decoder=name, params=FEWER.get(name, {})) for name in names]
    given, mask = np.array(spec.template), net.vocabulary.mask_id
    for name, answer in zip(names, net.run(specs), strict=True):
        canvas = np.array(answer.text)
        assert len(canvas) == len(given), name
        assert (canvas[given != mask] == given[given != mask]).all(), name
        assert not np.isin(canvas, [mask, *net.vocabulary.ends]).any(), name
        assert answer.outcome is Outcome.LENGTH, name
        assert answer.streamed == answer.text, name


def test_each_gap_is_a_lane_from_the_start_and_only_the_last_may_end(runner: Runner, vocabulary: Vocabulary) -> None:
    (answer,) = run(runner, vocabulary, [replace(SPEC, watched=True)])
    first = answer.events[0].lanes
    starts = [at for at, token in enumerate(TEMPLATE) if token == MASK and (not at or TEMPLATE[at - 1] != MASK)]
    assert [(lane.start, lane.role.value) for lane in first] == [
        (starts[0], "refine"),
        (starts[1], "refine"),
        (starts[2], "generate"),
    ]
    assert [lane.end - lane.start for lane in first] == [6, 3, 12]


@pytest.mark.parametrize("decoder", ["asynclane", "fast-dllm", pytest.param("llada", marks=LONG), "d3llm"])
def test_a_gap_is_written_for_what_comes_after_it(decoder: str, runner: Runner, vocabulary: Vocabulary) -> None:
    """Without the text after it, it cannot be known which function is meant."""
    specs = []
    for gap in GAPS:
        chat = [{"role": "user", "content": gap.question}, {"role": "assistant", "content": gap.before}]
        template = [*[MASK] * len(ids(gap.middle)), *ids(gap.after), *[MASK] * 4]
        specs.append(Spec(TEXT.encode_chat(chat), len(template), decoder, template=template))
    texts = [
        TEXT.decode(answer.text[: len(ids(gap.middle))])
        for gap, answer in zip(GAPS, run(runner, vocabulary, specs), strict=True)
    ]
    assert [gap.filled(text) for gap, text in zip(GAPS, texts, strict=True)] == [True] * len(GAPS)


@pytest.mark.parametrize("name", sorted(set(WHOLE_CANVAS) - set(TAKING)))
def test_a_decoder_that_changes_tokens_takes_no_template(runner: Runner, vocabulary: Vocabulary, name: str) -> None:
    """Nor does one whose lanes do not see what follows."""
    with pytest.raises(
        ParamError, match=f"template is not for decoder '{name}'|isolated siblings .* exclude a template"
    ):
        run(runner, vocabulary, [replace(SPEC, decoder=name, params=FEWER.get(name, {}))])


def test_a_network_that_sees_no_later_block_takes_no_template() -> None:
    with pytest.raises(ParamError, match="template is not for this model: no position sees past its block") as refused:
        network("tiny-sdar").run([SPEC])
    assert refused.value.param == "template"


def test_a_network_that_predicts_one_ahead_needs_a_first_text() -> None:
    net = network("shifted")
    template = [net.vocabulary.mask_id, 5, net.vocabulary.mask_id]
    with pytest.raises(ParamError, match="template must begin with a token") as refused:
        net.run([Spec([], 3, template=template)])
    assert refused.value.param == "template"
    (answer,) = net.run([Spec([7], 3, template=template, preferences=Preferences(ignore_end=True))])
    assert answer.text[1] == 5
