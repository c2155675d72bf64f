"""`asynclane train-controller`: answers prompts one token a forward, and fits the network of a learnt commit rule to
the input that it has in them."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from tqdm import tqdm

from ...bench.eval.data import Fields, Form, read_lines
from ...bench.load.output import missing_output
from ...bench.load.problems import problems
from ...models.checkpoint.registry import embedded_models
from ...scheduler import LEARNT_RULES, resolve
from ...server.cli.params import parse_params
from ...server.engine.controller import Controller, write_controller
from ...server.engine.messages import AnswerOptions
from ...server.engine.offline import Offline
from ...server.engine.wiring import Checkpoint, fingerprint_of, open_checkpoint
from ...server.settings import Settings
from ...server.text.tokenizer import Tokenizer
from .nets import Histories, Windows, report, train_controller, train_filter
from .recordings import Observations, Recording, RecordingController, RecordingFilter, Recordings

GENERATED = 400  # problems for an embedded model
LEAST = 10  # prompts
VALIDATION = 10  # one answer in so many
FORM = "a JSON object a line, with prompt (a text) or messages (a list of objects)"


class Method(NamedTuple):
    """How a rule's network learns: `examples` of what the rule has read, and so many `epochs`."""

    rule: type[Recording]
    epochs: int
    examples: Callable[[Observations], Windows | Histories]
    train: Callable[..., nn.Module]


LEARNERS: Mapping[str, Method] = {
    "tspd": Method(RecordingController, 120, Observations.histories, train_controller),
    "learn2pd": Method(RecordingFilter, 80, Observations.windows, train_filter),
}


def train(flags: argparse.Namespace, settings: Settings) -> int:
    """Run `asynclane train-controller`. `settings` have the method as their decoder. Raises `ValueError`, `OSError`,
    and the errors of the engine, with one line that says what is wrong."""
    method, out = LEARNERS[flags.method], flags.out or Path(f"{flags.method}.safetensors")
    if fault := missing_output(None, out):
        raise ValueError(fault)
    if settings.load_format == "dummy":
        raise ValueError("there is nothing to learn from random weights: leave out --load-format dummy")
    params = _params(flags.params, flags.method)
    checkpoint = open_checkpoint(settings.model, settings.download, block_size=settings.block_size)
    resolve(flags.method, params, flags.max_tokens, checkpoint.config.pattern)
    prompts = _prompts(flags, settings, checkpoint)
    fingerprint = fingerprint_of(settings, checkpoint.directory)
    found = record(settings, method, prompts, AnswerOptions(flags.max_tokens, params=tuple(params.items())))
    net, text = fit(flags.method, found, flags.epochs or method.epochs, flags.seed, settings.threads)
    controller = Controller(flags.method, settings.model_name, fingerprint, net.arrays())
    facts = {"prompts": len(prompts), "data": flags.data or "generated", "seed": flags.seed, **params}
    write_controller(out, controller, facts)
    print(f"{text}written to {out}: asynclane serve {settings.model} --decoder {flags.method} --controller {out}")
    return 0


def record(settings: Settings, method: Method, prompts: Sequence[list[int]], options: AnswerOptions) -> Observations:
    """The observations of the rule of `method` while the engine answers the prompts, each a row of token ids."""
    recordings = Recordings(method.rule)
    with (
        Offline(settings, {method.rule.NAME: recordings}) as offline,
        tqdm(total=len(prompts), unit="answer", desc="answers", disable=None) as bar,
    ):
        offline.answer_each([(prompt, options) for prompt in prompts], bar.update)
    return recordings.observations()


def fit(name: str, found: Observations, epochs: int, seed: int, threads: int | None = None) -> tuple[Any, str]:
    """The network of the method `name`, fitted to nine tenths of the answers, and a report on the others. Raises
    `ValueError` if there is nothing to learn."""
    out = found.answer % VALIDATION == 0
    learnt, validation = found.where(~out), found.where(out)
    wrong = int((~learnt.right).sum())
    if not wrong or not len(validation.right):
        raise ValueError("the answers have too few proposals that changed to learn from: give more, or longer, prompts")
    torch.manual_seed(seed)
    torch.use_deterministic_algorithms(True)
    if threads is not None:
        torch.set_num_threads(threads)
    method = LEARNERS[name]
    with tqdm(total=epochs, unit="epoch", desc="training", disable=None) as bar:
        net = method.train(method.examples(learnt), epochs, seed, bar.update)
    answers = len(np.unique(learnt.answer))
    counted = f"learnt from {len(learnt.right)} proposals of {answers} answers, {wrong} of them not final\n"
    return net, counted + report(name, net, method.examples(validation))


def _params(texts: Sequence[str], method: str) -> dict[str, Any]:
    """The parameters of the lanes and the cache. Raises `ValueError` for one of the rule."""
    params = parse_params(texts)
    for name in params:
        if name in LEARNT_RULES[method].DEFAULTS:
            raise ValueError(
                f"--knob {name} has no part in training, where one token commits in each forward: leave it out"
            )
    return params


def _prompts(flags: argparse.Namespace, settings: Settings, checkpoint: Checkpoint) -> list[list[int]]:
    """Different prompts as token ids. Raises `ValueError`."""
    text = checkpoint.text
    if flags.data is not None:
        lines = read_lines(flags.data, Form({}))[: flags.problems]
        rows = [_encoded(line.fields, line.place, text, flags.raw) for line in lines]
    elif settings.model in embedded_models():
        found = problems(flags.seed, flags.problems or GENERATED)
        rows = [_encoded({"prompt": problem.prompt}, problem.task, text, flags.raw) for problem in found]
    else:
        raise ValueError(f"{settings.model} needs --data FILE with prompts, {FORM}")
    different = [list(row) for row in dict.fromkeys(map(tuple, rows))]
    if len(different) < LEAST:
        raise ValueError(f"there are {len(different)} different prompts, and training needs at least {LEAST}")
    return different


def _encoded(fields: Fields, place: str, text: Tokenizer, raw: bool) -> list[int]:
    prompt, messages = fields.get("prompt"), fields.get("messages")
    if isinstance(prompt, str) and messages is None:
        if raw or not text.has_template:
            return text.encode(prompt)
        messages = [{"role": "user", "content": prompt}]
    elif prompt is not None or not isinstance(messages, list) or not all(isinstance(each, dict) for each in messages):
        raise ValueError(f"{place}: expected {FORM}")
    elif raw:
        raise ValueError(f"{place} has messages, which --raw excludes: give prompts")
    return text.encode_chat(messages)
