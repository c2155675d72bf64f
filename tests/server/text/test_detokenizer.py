"""Text is final, whole in its characters, free of stop strings, and the same however it arrives."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from asynclane.server.text.detokenizer import AnswerText, Detokenizer, StopMatcher
from asynclane.server.text.tokenizer import Tokenizer

from ...support.scale import ALL

SHARED_TEXT = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
IDS = st.lists(st.integers(0, 1404), max_size=60)
SMALL = st.text("ab", max_size=30)
STOPS = st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=4)


def cut(draw: st.DrawFn, whole: list[int] | str) -> list[list[int]] | list[str]:
    places = sorted(draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    return [whole[a:b] for a, b in zip([0, *places], [*places, len(whole)], strict=True)]  # type: ignore[misc]


@st.composite
def cut_ids(draw: st.DrawFn) -> tuple[list[int], list[list[int]]]:
    ids = draw(IDS)
    return ids, cut(draw, ids)  # type: ignore[return-value]


@st.composite
def cut_text(draw: st.DrawFn) -> tuple[str, list[str]]:
    text = draw(SMALL)
    return text, cut(draw, text)  # type: ignore[return-value]


@SHARED_TEXT
@given(cut_ids())
def test_any_ids_in_any_pieces_give_the_text_of_all(text: Tokenizer, case: tuple[list[int], list[list[int]]]) -> None:
    ids, pieces = case
    detokenizer = Detokenizer(text.backend)
    got = "".join([detokenizer.feed(piece) for piece in pieces] + [detokenizer.flush()])
    assert got == text.decode(ids)
    assert detokenizer.flush() == ""


@SHARED_TEXT
@given(st.text(max_size=40), st.integers(0, 100))
def test_no_character_is_ever_cut(text: Tokenizer, said: str, at: int) -> None:
    detokenizer = Detokenizer(text.backend)
    emitted = ""
    for token in text.backend.encode(said, add_special_tokens=False).ids:
        emitted += detokenizer.feed([token])
        assert text.decode(text.encode(said)).startswith(emitted)


def test_ids_without_a_token_have_no_text(text: Tokenizer) -> None:
    detokenizer = Detokenizer(text.backend)
    hi = text.encode("Hi")
    assert detokenizer.feed([1406, *hi, 1407, 4]) + detokenizer.flush() == "Hi"


def reference(whole: str, stops: list[str]) -> tuple[str, bool]:
    """The leftmost occurrence ends the text."""
    places = [whole.find(stop) for stop in stops if stop in whole]
    return (whole[: min(places)], True) if places else (whole, False)


@settings(max_examples=200 if ALL else 70)
@given(cut_text(), STOPS)
def test_stop_strings_are_found_however_the_text_is_cut(case: tuple[str, list[str]], stops: list[str]) -> None:
    whole, pieces = case
    matcher = StopMatcher(stops)
    emitted, matched = "", False
    for piece in pieces:
        text, matched = matcher.feed(piece)
        emitted += text
        assert reference(whole, stops)[0].startswith(emitted), "a part of a stop string has leaked"
        if matched:
            break
    if not matched:
        text, matched = matcher.flush()
        emitted += text
    assert (emitted, matched) == reference(whole, stops)
    found = min((stop for stop in stops if whole.startswith(stop, len(emitted))), key=len, default=None)
    assert matcher.found == (found if matched else None)
    including = StopMatcher(stops, includes=True)
    texts = [including.feed(piece)[0] for piece in pieces if including.found is None]
    texts += [including.flush()[0]] if including.found is None else []
    assert "".join(texts) == emitted + (found or "") * matched


@given(SMALL, STOPS)
def test_only_text_that_may_become_a_stop_string_is_kept_back(whole: str, stops: list[str]) -> None:
    text, matched = StopMatcher(stops).feed(whole)
    if not matched:
        kept = whole[len(text) :]
        could = [start for start in range(len(whole)) if any(s.startswith(whole[start:]) for s in stops)]
        complete = [whole.find(stop) for stop in stops if stop in whole]
        assert len(kept) == len(whole) - min([*could, len(whole)])
        assert not complete or min(complete) >= len(text)


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopMatcher([""])


@st.composite
def cut_words(draw: st.DrawFn) -> tuple[str, list[float]]:
    words = draw(st.lists(st.sampled_from(["stop", "st", "op", " ", "word", "🦆", "."]), max_size=12))
    return "".join(words), draw(st.lists(st.floats(0, 1), max_size=5))


@SHARED_TEXT
@given(cut_words())
def test_an_answer_uses_the_same_tokens_however_they_arrive(text: Tokenizer, case: tuple[str, list[float]]) -> None:
    said, places = case
    ids = text.encode(said) if said else []

    def read(pieces: list[list[int]]) -> tuple[str, int, bool]:
        answer, emitted, used = AnswerText(text, ["stop"]), "", 0
        for piece in pieces:
            more, count, stopped = answer.feed(piece)
            emitted, used = emitted + more, used + count
            if stopped:
                break
        return emitted + answer.flush(), used, answer.stopped

    bounds = [0, *sorted(round(place * len(ids)) for place in places), len(ids)]
    pieces = [ids[a:b] for a, b in itertools.pairwise(bounds)]
    emitted, used, stopped = read(pieces)
    assert (emitted, used, stopped) == read([[token] for token in ids]) == read([ids])
    assert (emitted, stopped) == reference(said, ["stop"])
    assert "stop" in text.decode(ids[:used]) or not stopped
    assert "stop" not in text.decode(ids[: used - 1]) or not stopped


@SHARED_TEXT
@given(cut_ids(), st.sampled_from([(), (".",), ("e", "the")]))
def test_each_token_has_its_place_in_the_text_and_none_that_was_cut(
    text: Tokenizer, case: tuple[list[int], list[list[int]]], stops: tuple[str, ...]
) -> None:
    ids, pieces = case
    answer, emitted, places = AnswerText(text, stops, placed=True), "", []
    for piece in pieces:
        emitted += answer.feed(piece)[0]
        places += answer.take_places()
        assert all(place.end <= len(emitted) for place in places)
    emitted += answer.flush()
    places += answer.take_places()
    assert all(0 <= place.start <= place.end <= len(emitted) for place in places)
    assert answer.stopped or len(places) == len(ids)
    for token, place in zip(ids, places, strict=False):
        said = text.decode([token])
        assert "\N{REPLACEMENT CHARACTER}" in said or said in emitted[place.start : place.end]
    whole = AnswerText(text, stops, placed=True)
    whole.feed(ids)
    whole.flush()
    assert places == whole.take_places(), "however they arrive"


def test_a_stop_token_ends_the_text_before_it_and_the_rest_comes(text: Tokenizer) -> None:
    ids = text.encode("Yes. No", specials=False)
    stop = text.encode(".", specials=False)[0]
    answer = AnswerText(text, ["Yes!"], [stop])
    assert answer.feed(ids) == ("Yes", ids.index(stop), True)
    assert answer.feed(ids) == ("", 0, True)
    assert answer.flush() == ""
    assert answer.stopped


def test_after_a_stop_string_nothing_is_used(text: Tokenizer) -> None:
    answer = AnswerText(text, ["."])
    assert answer.feed(text.encode("Yes. No"))[::2] == ("Yes", True)
    assert answer.feed(text.encode("more")) == ("", 0, True)
    assert answer.flush() == ""


def test_a_stop_string_that_only_the_end_decides_still_counts(text: Tokenizer) -> None:
    answer = AnswerText(text, ["abcd", "bc"])
    emitted, _, stopped = answer.feed(text.encode("xabc"))
    assert (emitted, stopped) == ("x", False)
    assert answer.flush() == "a"
    assert answer.stopped
