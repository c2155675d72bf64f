"""A kernel given another shape, type or layout says what it expected and what it was given, and reads nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from asynclane.kernels.attention.tiles import AttentionConfig, AttentionPlan
from asynclane.kernels.common.types import FeedForwardNorms, Prediction, Routing, SpanRules

from ..support.kernel_cases import DEVICE, attention_case, draws_of, kernels_of, span_case

attention, commit, elementwise, experts, linear, logits, measure, predict = (
    kernels_of(name)
    for name in ("attention", "commit", "elementwise", "experts", "linear", "logits", "measure", "predict")
)


def ids(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.int64, device=DEVICE)


def floats(*shape: int) -> Tensor:
    return torch.zeros(shape, device=DEVICE)


def attention_arguments() -> dict[str, Any]:
    case = attention_case([(3, 20), (2, 9)], 2, 2, 16, 16, device=DEVICE)
    return {**case, "block_size": 8}


def transfer_of(confidence: Tensor, open_: Tensor, **rules: Tensor) -> Tensor:
    return commit.transfer(confidence, open_, SpanRules(**rules))


def transfer_arguments() -> dict[str, Any]:
    confidence, open_, rules = span_case([4, 5], DEVICE)
    return {"confidence": confidence, "open_": open_, **rules._asdict()}


def commit_of(canvases: Tensor, slots: Tensor, positions: Tensor, tokens: Tensor, **rules: Tensor) -> Tensor:
    confidence = rules.pop("confidence")
    return commit.commit(canvases, slots, positions, tokens, confidence, 5, SpanRules(**rules))


def commit_arguments() -> dict[str, Any]:
    given = transfer_arguments()
    del given["open_"]
    return {"canvases": ids(2, 9), "slots": ids(9), "positions": ids(9), "tokens": ids(9), **given}


def predict_arguments() -> dict[str, Any]:
    endless = torch.zeros(3, dtype=torch.bool, device=DEVICE)
    return {"logits": floats(3, 8), "banned": ids(1), "end_ids": ids(1), "endless": endless}


def measure_of(**given: Tensor) -> Tensor:
    """`measure` with each of its tensors by name."""
    draws = draws_of(3, DEVICE)._replace(**{name: given.pop(name) for name in ("seeds", "positions", "steps")})
    kinds, noise = given.pop("kinds"), given.pop("noise")
    found = Prediction(confidence=floats(3).double(), **given)
    return measure.measure(floats(3, 8), found, kinds, noise, draws)


def measure_arguments() -> dict[str, Any]:
    numbers = {name: ids(3) for name in ("proposals", "tokens", "seeds", "positions", "steps")}
    wide = {name: floats(3).double() for name in ("commit_probability", "margin")}
    return {"kinds": ids(3).int(), "noise": floats(3), "entropy": floats(3), **numbers, **wide}


def add_feed_forward_of(mlp: Tensor, experts: Tensor, both: Tensor, **given: Tensor) -> object:
    return elementwise.add_feed_forward(**given, post_norms=FeedForwardNorms(mlp, experts, both), eps=1e-5)


def kernel(operation: Any, name: str) -> Callable[..., object]:
    """The kernel of that name, looked up when it is called: Triton may be absent."""
    return lambda **given: getattr(operation, name)(**given)


KERNELS: dict[str, tuple[Callable[..., object], Callable[[], dict[str, Any]]]] = {
    "paged_attention": (kernel(attention, "paged_attention"), attention_arguments),
    "rms_norm": (kernel(elementwise, "rms_norm"), lambda: {"x": floats(3, 8), "weight": floats(8), "eps": 1e-5}),
    "add_rms_norm": (
        kernel(elementwise, "add_rms_norm"),
        lambda: {"x": floats(3, 8), "residual": floats(3, 8), "weight": floats(8), "eps": 1e-5},
    ),
    "add_attention": (
        kernel(elementwise, "add_attention"),
        lambda: {
            **{name: floats(3, 8) for name in ("x", "residual")},
            **{name: floats(8) for name in ("post_norm", "mlp_norm", "experts_norm", "router_norm")},
            "eps": 1e-5,
        },
    ),
    "add_feed_forward": (
        add_feed_forward_of,
        lambda: {
            **{name: floats(3, 8) for name in ("mlp_output", "residual")},
            "parts": floats(3, 2, 8),
            "weights": floats(3, 2),
            **{name: floats(8) for name in ("mlp", "experts", "both", "next_norm")},
            "factors": floats(2),
            "kinds": ids(3).int(),
        },
    ),
    "swiglu": (kernel(elementwise, "swiglu"), lambda: {"gate_up": floats(3, 8)}),
    "rope_write_kv": (
        kernel(elementwise, "rope_write_kv"),
        lambda: {
            "qkv": floats(3, 4, 16),
            "cos": floats(3, 16),
            "sin": floats(3, 16),
            "places": ids(3),
            "keys": floats(2, 16, 1, 16),
            "values": floats(2, 16, 1, 16),
        },
    ),
    "embed": (
        kernel(elementwise, "embed"),
        lambda: {"canvases": ids(2, 9), "slots": ids(3), "positions": ids(3), "embedding": floats(7, 8)},
    ),
    "kv_places": (
        kernel(elementwise, "kv_places"),
        lambda: {"table": ids(2, 3).int(), "slots": ids(3), "positions": ids(3), "page_size": 16},
    ),
    "route": (
        kernel(experts, "route"),
        lambda: {"logits": floats(3, 8), "bias": floats(8), "routing": Routing(2), "scales": floats(8)},
    ),
    "soft_cap": (kernel(logits, "soft_cap"), lambda: {"logits": floats(3, 8), "cap": 30.0}),
    "temper": (
        kernel(logits, "temper"),
        lambda: {"logits": floats(3, 8), "temperatures": floats(3), "dtype": torch.float16},
    ),
    "predict": (kernel(predict, "predict"), predict_arguments),
    "measure": (measure_of, measure_arguments),
    "transfer": (transfer_of, transfer_arguments),
    "commit": (commit_of, commit_arguments),
    "fixed_linear": (kernel(linear, "fixed_linear"), lambda: {"x": floats(3, 16), "weight": floats(8, 16)}),
    "quantize_rows": (kernel(linear, "quantize_rows"), lambda: {"x": floats(3, 16)}),
}


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_wrong_tensor_is_named_with_what_was_expected(kernel: str) -> None:
    call, arguments = KERNELS[kernel]
    call(**arguments())
    for name, tensor in arguments().items():
        if isinstance(tensor, Tensor):
            with pytest.raises(ValueError, match=rf"^{name} must be .*, not .* complex64"):
                call(**arguments() | {name: tensor.to(torch.complex64)})
            # A size may be found at another tensor that depends on it.
            with pytest.raises(ValueError, match=r"must be \[.*\] .*, not \[.*\] "):
                call(**arguments() | {name: tensor[None]})


@pytest.mark.parametrize(("kernel", "name"), [("embed", "embedding"), ("paged_attention", "queries")])
def test_a_transposed_tensor_is_refused(kernel: str, name: str) -> None:
    call, arguments = KERNELS[kernel]
    given = arguments()
    given[name] = given[name].transpose(0, 1).contiguous().transpose(0, 1)
    with pytest.raises(ValueError, match=f"{name} must be contiguous, not with strides"):
        call(**given)


def test_values_in_other_pages_than_keys_are_refused() -> None:
    call, arguments = KERNELS["rope_write_kv"]
    with pytest.raises(ValueError, match=r"values must be \[2, 16, 1, 16\] float32, not \[1, 16, 1, 16\]"):
        call(**arguments() | {"values": floats(1, 16, 1, 16)})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tiles": ids(2, 4)}, r"the plan's tiles must be \[tiles, 4\] int32, not \[2, 4\] int64"),
        ({"arrivals": ids(9999)}, r"the plan's arrivals must be \[programs\] int32"),
        ({"arrivals": ids(9).int()}, "the plan counts 9 programs"),
    ],
)
def test_a_plan_that_does_not_belong_to_the_launch_is_refused(change: dict[str, Tensor], message: str) -> None:
    given = attention_arguments()
    plan = AttentionPlan(AttentionConfig(16, 16, 4, 2), torch.zeros(2, 4, dtype=torch.int32, device=DEVICE))
    with pytest.raises(ValueError, match=message):
        attention.paged_attention(**given, plan=replace(plan, **change))


def test_draws_of_another_length_are_named() -> None:
    with pytest.raises(ValueError, match=r"temperature must be \[3\] float32, not \[2\] float32"):
        predict.predict(**predict_arguments(), draws=draws_of(2, DEVICE))
