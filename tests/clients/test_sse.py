"""Events are the same wherever the network cuts the bytes."""

from __future__ import annotations

import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asynclane.clients import StreamError
from asynclane.clients.reader import Event, EventDecoder

STREAM = (
    '\ufeffdata: {"a": "wörld 🦆"}\n\n'
    ": a comment\n\n"
    "event: error\r\ndata: one\r\ndata: two\r\n\r\n"
    "data:no space\rdata:  two spaces\r\r"
    "id: 5\nretry: 10\nunknown\n\n"
    "event: nothing\n\n"
    "data\n\n"
    "data: \r\n\r\n"
    "data: [DONE]\n\n"
    "data: cut off"
).encode()

EVENTS = [
    Event('{"a": "wörld 🦆"}'),
    Event("one\ntwo", "error"),
    Event("no space\n two spaces"),
    Event(""),
    Event(""),
    Event("[DONE]"),
]


def decode(*pieces: bytes) -> list[Event]:
    decoder = EventDecoder()
    return [event for piece in pieces for event in decoder.feed(piece)]


@pytest.mark.parametrize("at", range(len(STREAM) + 1))
def test_cut_at_every_byte(at: int) -> None:
    assert decode(STREAM[:at], STREAM[at:]) == EVENTS
    assert decode(STREAM[:at], b"", STREAM[at:]) == EVENTS


@given(st.lists(st.sampled_from([b"data: a", b"\r", b"\n", b"\r\n", b":", b"event: x", b"\xc3", b"\xb6"]), max_size=20))
def test_any_stream_reads_the_same_byte_by_byte(parts: list[bytes]) -> None:
    stream = b"".join(parts)
    assert decode(*(bytes([byte]) for byte in stream)) == decode(stream)


def test_a_long_line_in_many_pieces_takes_time_in_proportion_to_its_length() -> None:
    """By what a line takes that is eight times shorter: quadratic, it would be 64 times; a busy machine has slack."""

    def seconds(pieces: int) -> float:
        decoder = EventDecoder()
        started = time.process_time()
        for _ in range(pieces):
            decoder.feed(b"x" * 64)
        return time.process_time() - started

    seconds(100)
    assert seconds(160_000) < 30 * min(seconds(20_000) for _ in range(3))


@pytest.mark.parametrize("piece", [b"x" * 65536, b"data: " + b"x" * 65536 + b"\n", b"data:" + b"\ndata:" * 4096])
def test_an_event_that_never_ends_is_refused_while_it_can_be_held(
    piece: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asynclane.clients.reader.MOST_BYTES", 2**20)
    decoder = EventDecoder()

    def feed_on() -> None:
        for _ in range(2**20 // 4096):
            decoder.feed(piece)

    with pytest.raises(StreamError, match="more than 1048576 bytes"):
        feed_on()


def test_events_without_end_are_no_long_event() -> None:
    decoder = EventDecoder()
    piece = b"data: " + b"x" * 2**20 + b"\n\n" + b": still here\n" * 10_000
    for _ in itertools.repeat(None, 24):
        (event,) = decoder.feed(piece)
        assert len(event.data) == 2**20
