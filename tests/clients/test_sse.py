"""Events are the same wherever the network cuts the bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asynclane.clients.sse import Event, EventDecoder

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


def test_whole() -> None:
    assert decode(STREAM) == EVENTS


def test_byte_by_byte() -> None:
    assert decode(*(bytes([byte]) for byte in STREAM)) == EVENTS


@pytest.mark.parametrize("at", range(len(STREAM) + 1))
def test_cut_at_every_byte(at: int) -> None:
    assert decode(STREAM[:at], STREAM[at:]) == EVENTS
    assert decode(STREAM[:at], b"", STREAM[at:]) == EVENTS


@given(st.lists(st.sampled_from([b"data: a", b"\r", b"\n", b"\r\n", b":", b"event: x", b"\xc3", b"\xb6"]), max_size=20))
def test_any_stream_reads_the_same_byte_by_byte(parts: list[bytes]) -> None:
    stream = b"".join(parts)
    assert decode(*(bytes([byte]) for byte in stream)) == decode(stream)
