"""Patterns of names from files end in time, or are refused."""

from __future__ import annotations

import re
import time

import pytest

from asynclane.models.checkpoint.patterns import checked_pattern

NAME = "model.layers.17.mlp.experts.127.gate_proj_" + "ab" * 20 + "!"


@pytest.mark.parametrize(
    "text",
    [
        "", ".*lm_head", r"model\.layers\.(0|1|2)\..*", r".*self_attn\.(q|k|v)_proj$", r"-:.*\.(?:[0-9]|1[0-9])\..*",
        r"(?P<layer>\d+)\.mlp", "[*+(]*x", r"a\(\*+", "(a*)?b", "layers[.]{1}[^]]+", ".*a.*b.*c.*d", "down_proj",
    ],
)  # fmt: skip
def test_a_pattern_of_a_published_form_is_taken_and_ends_in_time(text: str) -> None:
    assert checked_pattern(text) == text
    began = time.perf_counter()
    re.match(text, NAME)
    assert time.perf_counter() - began < 1


@pytest.mark.parametrize(
    "text",
    ["(a+)+$", "(a|aa)*$", "(.*)*x", "(?:(?:a*)?)+b", "(a?a?)*b", r"([ab]+){9}!", "((a{9}){9}){9}", ".*" * 5],
)
def test_a_pattern_that_may_never_end_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="repeats too much"):
        checked_pattern(text)


@pytest.mark.parametrize("text", ["(", "a{99999999999}", "(" * 5000, "[", "*"])
def test_what_is_no_pattern_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no regular expression"):
        checked_pattern(text)
