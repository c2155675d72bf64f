"""Loaded by schemathesis: leads bodies past what no JSON Schema can say, so that more of them reach the engine."""

from __future__ import annotations

import os
from typing import Any

import schemathesis

from asynclane.scheduler.decoding.resolve import ALL_PARAMS

MODEL, VOCABULARY, SHORT_TOKENS = "tiny-llada", 1400, 6


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    # Schemathesis looks at the changed body again: what is valid now counts as valid.
    if isinstance(case.body, dict) and "FUZZ_WILD" not in os.environ:
        case.body = tamed(case.body, answered=case.path.endswith(("/completions", "/messages")))


def tamed(body: dict[str, Any], answered: bool) -> dict[str, Any]:
    """The served model, a short answer, known tokens, one decoding parameter, no options that exclude each other."""
    body = dict(body)
    if isinstance(body.get("model"), str):
        body["model"] = MODEL
    if "input" in body:
        body.setdefault("max_output_tokens", SHORT_TOKENS)
    if "prompt" in body or ("messages" in body and answered):
        body.setdefault("max_tokens", SHORT_TOKENS)
    for name in ("max_tokens", "max_completion_tokens", "max_output_tokens", "min_tokens", "n", "best_of"):
        if type(body.get(name)) is int and body[name] > 0:
            body[name] = SHORT_TOKENS if name.startswith("max") else 1 + body[name] % 2
    params = sorted(ALL_PARAMS.keys() & body.keys())
    kept = params[len(repr(body)) % len(params)] if params else None
    dropped = {name for name in params if name != kept}
    dropped |= {"min_tokens"} if body.get("stop") else set()
    dropped |= {"stream_options"} if not body.get("stream") else set()
    dropped |= {"logprobs"} if body.get("echo") is True else set()
    dropped |= {"top_logprobs"} if body.get("logprobs") is not True and not body.get("include") else set()
    dropped |= {"continue_final_message", "add_generation_prompt", "best_of"} if len(repr(body)) % 8 else set()
    dropped |= {"tools", "tool_choice", "chat_template_kwargs"} if len(repr(body)) % 8 else set()
    known = {name: _known(value) for name, value in body.items() if name not in dropped}
    if isinstance(known.get("logit_bias"), dict):
        known["logit_bias"] = {_known_name(name): bias for name, bias in known["logit_bias"].items()}
    return known


def _known(value: Any) -> Any:
    """Lists are of token ids, or hold no whole numbers."""
    if isinstance(value, list):
        return [_known(item) if type(item) is not int else item % VOCABULARY if item > 0 else item for item in value]
    return value


def _known_name(name: str) -> str:
    return str(6 + int(name) % VOCABULARY % (VOCABULARY - 6)) if name.isascii() and name.isdigit() else name
