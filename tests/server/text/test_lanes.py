"""Lane events show what every step did to an answer's lanes, and do not change its text."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import numpy as np
import pytest

from asynclane.scheduler.decoding.lane_tree import Role
from asynclane.scheduler.lane_events import Fate, LaneChange, LaneEvents
from asynclane.server.app import build_service
from asynclane.server.engine.answer import lane_step
from asynclane.server.engine.messages import AnswerOptions, Delta, Finish
from asynclane.server.engine.offline import Offline
from asynclane.server.settings import Settings
from asynclane.server.text.lanes import LaneEvent, Watcher
from asynclane.server.text.tokenizer import Tokenizer

from ...support.fake_engine import SCRIPT, USAGE, FakeEngine
from ...support.http import chunks_of
from ...support.scale import part

CODE = "Write a Python function `count_even(numbers)` that returns the number of even numbers in a list."
EGGS = "Ben has 14 eggs. Then he finds 9 eggs at the farm. How many eggs does Ben have now?"
STORY = "Tell me a short story about Mia and a fox at the park."
CANVAS = 128
LANES = {"stream": True, "stream_options": {"include_lanes": True}}
EVENT = LaneEvent(0, (-5, 8), False, (), ())

SETTINGS = Settings(model="tiny-llada", threads=1, dtype="float32")


@pytest.fixture(scope="module")
def offline() -> Iterator[Offline]:
    with Offline(SETTINGS) as offline:
        yield offline


class Watched:
    """An answer of the embedded model with all of its deltas."""

    def __init__(self, offline: Offline, question: str, **options: Any) -> None:
        self.deltas: list[Delta] = []
        self.prompt = offline.encode_chat(question)
        merged = AnswerOptions(**{"max_tokens": CANVAS, "watch": True, **options})
        self.answer = offline.watch(self.prompt, merged, self.deltas.append)
        self.events = [delta.lanes for delta in self.deltas if delta.lanes is not None]
        self.commits = [commit for event in self.events for commit in event.commits]
        self.canvas = {commit.position: commit.text for commit in self.commits}


QUESTIONS: list[tuple[str, dict[str, Any]]] = [
    (CODE, {}),
    (EGGS, {}),
    (STORY, {"temperature": 0.8, "seed": 3}),
    (CODE, {"params": (("draft_threshold", "off"), ("block_length", 8))}),
    (CODE, {"decoder": "fast-dllm"}),
    (EGGS, {"decoder": "llada", "params": (("steps", 16),)}),
]


@pytest.fixture(scope="module", params=part(QUESTIONS, 2), ids=lambda case: f"{case[0].split()[0]} {case[1]}")
def watched(request: pytest.FixtureRequest, offline: Offline) -> Watched:
    question, options = request.param
    return Watched(offline, question, **options)


@pytest.fixture(scope="module")
def forked(offline: Offline) -> Watched:
    return Watched(offline, CODE)


def test_every_step_has_one_event_in_order(watched: Watched) -> None:
    assert [event.step for event in watched.events] == list(range(watched.answer.usage.stats.forwards))
    assert sum(event.refresh for event in watched.events) == watched.answer.usage.stats.refreshes


def test_ranges_lie_within_prompt_and_canvas(watched: Watched) -> None:
    for event in watched.events:
        start, end = event.computed
        assert -len(watched.prompt) <= start < end <= CANVAS
        for lane in event.lanes:
            assert 0 <= lane.start < lane.end <= CANVAS
            assert len(lane.tokens) == lane.end - lane.start
        assert all(start <= commit.position < end for commit in event.commits), "a step commits what it computes"


def test_commits_in_their_order_spell_the_answer(watched: Watched) -> None:
    tokens = watched.answer.usage.completion_tokens
    assert len(watched.canvas) == len(watched.commits), "every position is committed once"
    assert "".join(watched.canvas[position] for position in range(tokens)) == watched.answer.text


def test_text_is_never_ahead_of_the_commits(watched: Watched) -> None:
    canvas: dict[int, str] = {}
    sent = ""
    for delta in watched.deltas:
        if delta.lanes is not None:
            canvas |= {commit.position: commit.text for commit in delta.lanes.commits}
        sent += delta.text
        contiguous = "".join(canvas[at] for at in range(next(at for at in range(CANVAS + 1) if at not in canvas)))
        assert contiguous.startswith(sent)


def test_a_lane_shows_what_is_committed_in_it_and_no_more(watched: Watched) -> None:
    canvas: dict[int, str] = {}
    for event in watched.events:
        canvas |= {commit.position: commit.text for commit in event.commits}
        for lane in event.lanes:
            assert list(lane.tokens) == [canvas.get(position) for position in range(lane.start, lane.end)]


def test_lanes_stand_left_to_right_and_all_between_them_is_committed(watched: Watched) -> None:
    canvas: set[int] = set()
    for event in watched.events:
        edges = [(lane.start, lane.end) for lane in event.lanes]
        assert edges == sorted(edges)
        for start, end in zip([0, *(end for _, end in edges)], (start for start, _ in edges), strict=False):
            assert canvas >= set(range(start, end)), "what precedes a lane is committed, or is another lane's"
        canvas |= {commit.position for commit in event.commits}


def test_drafts_are_what_was_committed_outside_of_all_lanes(forked: Watched) -> None:
    drafts = [commit.position for event in forked.events for commit in event.drafts]
    assert drafts
    for event in forked.events:
        inside = {position for lane in event.lanes for position in range(lane.start, lane.end)}
        assert {draft.position for draft in event.drafts} == {c.position for c in event.commits} - inside


def test_a_fork_cuts_its_lane_and_the_child_begins_after_the_cut(forked: Watched) -> None:
    forks = 0
    for before, after in zip(forked.events, forked.events[1:], strict=False):
        then = {lane.id: lane for lane in after.lanes}
        for lane in before.lanes:
            if lane.fate != "forked":
                continue
            forks += 1
            assert lane.role == "generate"
            children = [child for child in after.lanes if child.parent == lane.id and child.start > lane.start]
            if lane.id in then:
                assert (then[lane.id].role, then[lane.id].start) == ("refine", lane.start)
            cut = then[lane.id].end if lane.id in then else lane.end
            assert cut <= lane.end
            for child in children:
                assert child.role == "generate"
                committed = {c.position for e in forked.events for c in e.commits if e.step <= before.step}
                assert committed >= set(range(cut, child.start)), "the child begins at the first open position"
    assert forks == forked.answer.usage.stats.forks > 0


def test_the_fate_of_a_lane_comes_true(watched: Watched) -> None:
    tokens = watched.answer.usage.completion_tokens
    for before, after in zip(watched.events, watched.events[1:], strict=False):
        then = {lane.id: lane for lane in after.lanes}
        for lane in before.lanes:
            match lane.fate:
                case "live":
                    assert then[lane.id].role == lane.role
                case "finished":
                    assert lane.id not in then
                    assert None not in lane.tokens[: max(0, tokens - lane.start)], "the end of the answer cuts it"
                case "cancelled":
                    assert lane.id not in then
                    assert lane.start >= tokens
                case fate:
                    assert fate == "forked"
    born = {lane.id for event in watched.events for lane in event.lanes}
    assert max(born) < watched.answer.usage.stats.lanes


def test_the_text_is_the_same_without_lane_events(
    offline: Offline, watched: Watched, request: pytest.FixtureRequest
) -> None:
    question, options = request.node.callspec.params["watched"]
    plain = Watched(offline, question, **options, watch=False)
    assert not plain.events
    usage = watched.answer.usage
    times = {"queue_s": usage.queue_s, "first_forward_s": usage.first_forward_s}
    plain_usage = replace(plain.answer.usage, **times)
    assert replace(plain.answer, usage=plain_usage) == replace(watched.answer, lanes=())
    assert all(delta.text or delta.finish for delta in plain.deltas)
    texts = [delta.text for delta in watched.deltas if delta.text]
    assert texts == [delta.text for delta in plain.deltas if delta.text], "delta for delta"


def test_special_tokens_have_no_text_and_open_positions_none(text: Tokenizer) -> None:
    end, mask = min(text.end_ids), text.mask_id
    word = text.encode("Paris")[0]
    canvas = np.array([word, mask, end, *sorted(text.special_ids - {mask, end})], np.int32)
    committed = np.flatnonzero(canvas != mask).astype(np.int32)
    lane = LaneChange(0, None, Role.GENERATE, 0, len(canvas), Fate.LIVE, canvas)
    frame = LaneEvents(0, -3, len(canvas), False, (lane,), committed, canvas[committed])
    watcher = Watcher(text)
    event = watcher.look(lane_step(frame))
    assert event is not None
    assert event.lanes[0].tokens == (text.pieces[word], None, *[""] * (len(canvas) - 2))
    assert {commit.text for commit in event.commits} == {text.pieces[word], ""}


# --- Over HTTP ---------------------------------------------------------------------------------------------


async def test_lanes_come_in_chunks_that_plain_clients_pass_over(api: Any) -> None:
    engine = FakeEngine([Delta("", lanes=EVENT), Delta("a", lanes=EVENT), Delta("b", Finish.STOP, USAGE, EVENT)])
    wanted = json.loads(json.dumps(EVENT.json()))
    async with api(engine) as client:
        chats = chunks_of(await client.chat(**LANES))
        texts = chunks_of(await client.complete(**LANES))
    assert all(options.watch for options in engine.options)
    for chunks, empty in ((chats, {"delta": {}}), (texts, {"text": ""})):
        with_lanes = [chunk for chunk in chunks if "lanes" in chunk]
        assert [chunk["lanes"] for chunk in with_lanes] == [wanted] * 3
        for chunk in with_lanes:
            assert chunk["choices"] == [{"index": 0, **empty, "logprobs": None, "finish_reason": None}]
    order = ["lanes" if "lanes" in chunk else chunk["choices"][0]["delta"].get("content") for chunk in chats]
    assert order == ["", "lanes", "lanes", "a", "lanes", "b", None]


@pytest.mark.parametrize("options", [None, {}, {"include_lanes": False}, {"include_lanes": None}])
async def test_without_include_lanes_there_are_none(api: Any, options: Any) -> None:
    engine = FakeEngine(SCRIPT)
    async with api(engine) as client:
        chunks = chunks_of(await client.chat(stream=True, stream_options=options))
    assert not engine.options[0].watch
    assert not any("lanes" in chunk for chunk in chunks)


async def test_a_stream_of_two_choices_has_the_lanes_of_each_and_the_same_text(text: Tokenizer) -> None:
    body = {"model": "tiny-llada", "messages": [{"role": "user", "content": EGGS}], "max_tokens": 64}
    body |= {"n": 2, "temperature": 0.9, "seed": 5, "stream": True}
    app = build_service(SETTINGS).app
    client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test", timeout=60)
    async with asyncio.timeout(60), app.router.lifespan_context(app), client as http:
        plain = chunks_of(await http.post("/v1/chat/completions", json=body))
        response = await http.post("/v1/chat/completions", json={**body, **LANES})
    special = [name for name in text.backend.get_vocab() if name.startswith("<|")]
    watched = chunks_of(response)

    def said(chunks: list[dict[str, Any]], index: int) -> str:
        mine = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
        return "".join(choice["delta"].get("content") or "" for choice in mine)

    for index in (0, 1):
        mine = [chunk for chunk in watched if chunk["choices"][0]["index"] == index]
        events = [chunk["lanes"] for chunk in mine if "lanes" in chunk]
        assert [event["step"] for event in events] == list(range(len(events)))
        canvas = {commit["position"]: commit["text"] for event in events for commit in event["commits"]}
        assert said(watched, index) == said(plain, index)
        assert "".join(canvas[position] for position in sorted(canvas)).startswith(said(plain, index))
    assert special
    assert not [name for name in special if name in response.text], "special tokens have no text"
