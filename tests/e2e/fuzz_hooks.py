"""Loaded by schemathesis: leads bodies past what no JSON Schema can say, so that more of them reach the engine."""

from __future__ import annotations

import os
from typing import Any

import schemathesis

from asynclane.scheduler.decoding.resolve import ALL_PARAMS

MODEL, VOCABULARY, SHORT_TOKENS = "tiny-llada", 1400, 6
GRAMMARS = (
    *("response_format", "structured_outputs", "guided_json", "guided_regex", "guided_choice"),
    *("bad_words", "allowed_token_ids"),
)
NOT_IN_TEMPLATES = (
    *("prompt", "suffix", "echo", "max_tokens", "min_tokens", "stop", "stop_token_ids", "logprobs", "best_of"),
    *("likelihood", "likelihood_samples", "likelihood_start", *GRAMMARS),
)


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    # Schemathesis looks at the changed body again: what is valid now counts as valid.
    if isinstance(case.body, dict) and "FUZZ_WILD" not in os.environ:
        prompted = case.path.endswith("/completions") and "messages" not in case.body
        case.body = tamed(case.body, answered=case.path.endswith(("/completions", "/messages")), prompted=prompted)


def tamed(body: dict[str, Any], answered: bool, prompted: bool = False) -> dict[str, Any]:
    """The served model, a short answer, known tokens, one decoding parameter, no options that exclude each other."""
    body = dict(body)
    filled = prompted and isinstance(body.get("template"), list)
    if filled:
        body["template"] = [part for each in body["template"] for part in _template_part(each)]
    elif prompted and len(repr(body)) % 4:
        body.setdefault("prompt", "One")
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
    dropped |= {"stream_options", "diffusing"} if not body.get("stream") else set()
    dropped |= {"logprobs", "tools", "best_of"} if body.get("diffusing") else set()
    dropped |= set(NOT_IN_TEMPLATES) if filled else set()
    dropped |= set([name for name in GRAMMARS if body.get(name)][1:])
    dropped |= {"logprobs"} if body.get("echo") is True else set()
    dropped |= {"top_logprobs"} if body.get("logprobs") is not True and not body.get("include") else set()
    dropped |= {"continue_final_message", "add_generation_prompt", "best_of"} if len(repr(body)) % 8 else set()
    dropped |= {"tools", "tool_choice", "chat_template_kwargs"} if len(repr(body)) % 8 else set()
    known = {name: _known(value) for name, value in body.items() if name not in dropped}
    if isinstance(known.get("logit_bias"), dict):
        known["logit_bias"] = {_known_name(name): bias for name, bias in known["logit_bias"].items()}
    return known


def _template_part(part: Any) -> list[Any]:
    """A short gap has a text before it."""
    if isinstance(part, dict) and type(part.get("tokens")) is int and part["tokens"] > 0:
        return [" and", {**part, "tokens": 1 + part["tokens"] % 3}]
    return [part]


def _known(value: Any) -> Any:
    """Lists are of token ids, or hold no whole numbers."""
    if isinstance(value, list):
        return [_known(item) if type(item) is not int else item % VOCABULARY if item > 0 else item for item in value]
    return value


def _known_name(name: str) -> str:
    return str(6 + int(name) % VOCABULARY % (VOCABULARY - 6)) if name.isascii() and name.isdigit() else name
