"""Trains an embedded model on one GPU, from a seed, in calls of limited time that go on where the last one ended.

Usage: python -m asynclane.training.train tiny-dream OUT [--seconds 540] [--clock] [--resume DIR]
The rate of learning is constant and then falls linearly to zero over the last `--decay` of `--steps`: a run that was
cut before the fall can go on to any number of steps (momentum starts again with each run). Results are the same for
the same seed, device and runs. With `--clock` stages and the fall follow the time, so that a run of any length ends
with a finished model; then results differ from run to run. A run that goes on is all bidirectional then.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from tokenizers import Tokenizer

from .batches import SIZES, Shelf, batches, shelves
from .corpus import Example, parts
from .diets import Diet, diet
from .export import export, restore
from .network import Network
from .shapes import SHAPES, Shape
from .trainer import Trainer

STATE = "state.json"
WARMUP = 200  # steps, after every start: momentum is not kept between calls
STAGE_BLOCK = 16  # of the block-causal stage of a bidirectional model
REPORT_S = 20.0
LEAST_TOKENS = sum(SIZES[-1])
FIRST_PARTS = 16  # of the corpus, which are enough to compile for
VALIDATION = 4096  # examples, at most
CROPPED = 0.25  # share of batches


@dataclass(frozen=True, slots=True)
class Plan:
    """`tokens` of a batch; the rate falls over the last `decay` of `steps`, or of the time from `started` to `deadline`
    (of `time.monotonic`) if the `clock` rules."""

    steps: int
    decay: float
    tokens: int
    started: float
    deadline: float
    clock: bool = False

    def done(self, step: int) -> float:
        """The share of the training that is done before a step."""
        if self.clock:
            return (time.monotonic() - self.started) / (self.deadline - self.started)
        return step / self.steps

    def rate(self, step: int, since_start: int) -> float:
        """The share of the full rate at a step, `since_start` steps after the start of this run."""
        falling = (1.0 - self.done(step)) / max(1 / self.steps, self.decay)
        return min(1.0, (since_start + 1) / WARMUP, max(0.0, falling))


def main(argv: Sequence[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(argv)
    if options.tokens < LEAST_TOKENS:
        parser.error(f"--tokens must be at least {LEAST_TOKENS}, the longest row with its second copy")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_float32_matmul_precision("high")
    torch._dynamo.config.recompile_limit = 64  # every size of a batch is compiled, in two stages
    started, step = time.monotonic(), 0
    shape = SHAPES[options.model]
    try:
        recipe = diet(options.model, options.corpus)
    except ValueError as error:
        parser.error(str(error))
    plan = Plan(options.steps, options.decay, options.tokens, started, started + options.seconds, options.clock)
    tokenizer = recipe.tokenizer
    if options.resume:
        step = resumed(options.resume, options.model)
    if step >= plan.steps and not plan.clock:
        parser.error(f"--steps {plan.steps}: all of them, those before --resume counted, are done")
    options.out.mkdir(parents=True, exist_ok=True)  # now, not when all is trained
    course = stages(shape, plan, bool(options.resume))
    with parts(tokenizer / "tokenizer.json", options.seed, options.examples, recipe.source) as written:
        examples = [example for part in islice(written, FIRST_PARTS) for example in part]
        torch.manual_seed(options.seed)
        trainer = Trainer(shape, device)
        if options.resume:
            restore(trainer.network, options.resume)
        if device.type == "cuda":  # compiles while the other parts are written
            compile_ahead(
                trainer, examples, recipe, plan, next(block for block, until in course if plan.done(step) < until)
            )
        examples += [example for part in written for example in part]
    _say(f"{len(examples)} examples of {sum(len(ids) for ids, _ in examples) / len(examples):.0f} tokens on average,"
         f" {time.monotonic() - started:.0f} s")  # fmt: skip
    torch.manual_seed(options.seed * 1_000_003 + step)
    validation = min(VALIDATION, len(examples) // 8)
    call = Call(examples[:-validation], options.seed, recipe)
    for block, until in course:
        step = run(trainer, call, plan, block, step, until)
    loss = validation_loss(trainer, examples[-validation:], plan.tokens, recipe)
    _say(f"validation loss {loss:.4f} after {step} steps, {step * plan.tokens / 1e9:.3f} B tokens")
    export(trainer.network, options.out, tokenizer, recipe.template)
    for name in recipe.files:
        shutil.copyfile(tokenizer / name, options.out / name)
    (options.out / STATE).write_text(
        json.dumps({"model": options.model, "step": step, "seed": options.seed}) + "\n", encoding="utf-8"
    )
    if options.problems:
        plain = Network(shape).to(device)  # one that was not compiled for the shapes of training
        restore(plain, options.out)
        read = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
        shares = recipe.probe(plain, read, options.problems)
        _say(f"{options.problems} problems: "
             + ", ".join(f"{task} {share:.3f}" for task, share in shares.items()))  # fmt: skip
    return 0


def resumed(directory: Path, model: str) -> int:
    """The steps of training in a checkpoint of `train`. Ends the program where there is none of this model."""
    try:
        state = json.loads((directory / STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SystemExit(f"{directory}: nothing to go on from, {STATE} cannot be read: {error}") from None
    if state["model"] != model:
        raise SystemExit(f"{directory} is a {state['model']}, not a {model}")
    return int(state["step"])


def stages(shape: Shape, plan: Plan, resumes: bool) -> list[tuple[int, float]]:
    """In turn: the block size that is trained (0: bidirectional), and the share of the training at which that ends."""
    first = 0.0 if plan.clock and resumes else shape.causal_first
    return [(STAGE_BLOCK, first), (shape.block, 1.0)]


@dataclass(frozen=True, slots=True)
class Call:
    """The inputs of one run of the program."""

    examples: Sequence[Example]
    seed: int
    diet: Diet

    def shelves(self, block: int, device: torch.device) -> list[Shelf]:
        return shelves(self.examples, block, device, self.diet.sizes, self.diet.roomier)


def compile_ahead(trainer: Trainer, examples: Sequence[Example], diet: Diet, plan: Plan, block: int) -> None:
    """Captures the step of every size of a stage's batches, at a rate of zero."""
    kept = shelves(examples, block, trainer.device, diet.sizes, diet.roomier)
    draws = torch.Generator(trainer.device).manual_seed(0)
    source = batches(kept, plan.tokens, 0.0, random.Random(0), draws)
    for _ in kept:
        trainer.step(*next(source), block, 0.0).item()


def run(trainer: Trainer, call: Call, plan: Plan, block: int, step: int, until: float) -> int:
    """Trains one stage until its share of the training or the end of the time; the steps done in all."""
    if plan.done(step) >= until:
        return step
    first, begun, reported = step, time.monotonic(), 0.0
    kept = call.shelves(block, trainer.device)
    draws = torch.Generator(trainer.device).manual_seed(call.seed * 1_000_003 + step)
    cropped = 0.0 if block else CROPPED  # block-causal positions see nothing of where the canvas ends
    choice = random.Random(f"{call.seed} {step}")
    source = batches(kept, plan.tokens, cropped, choice, draws, call.diet.lean)
    while plan.done(step) < until and time.monotonic() < plan.deadline:
        loss = trainer.step(*next(source), block, plan.rate(step, step - first))
        step += 1
        now = time.monotonic()
        if now - reported > REPORT_S:
            value = loss.item()  # waits for the device, so the time is taken after it
            now = reported = time.monotonic()
            speed = (step - first) * plan.tokens / (now - begun) / 1e6
            _say(
                f"step {step} of {plan.steps}, block {block}, {now - begun:.0f} s, {speed:.2f} M tokens/s, {value:.4f}"
            )
    return step


def validation_loss(trainer: Trainer, examples: Sequence[Example], tokens: int, diet: Diet) -> float:
    """The mean over batches of every size, with the same noise at every call."""
    block = trainer.shape.block
    kept = shelves(examples, block, trainer.device, diet.sizes, diet.roomier)
    torch.manual_seed(0)
    draws = torch.Generator(trainer.device).manual_seed(0)
    checks = batches(kept, tokens, 0.0, random.Random(0), draws)
    # With gradients, which nobody takes: without, everything would be compiled once more.
    losses = [trainer.loss(*next(checks), block).item() for _ in range(4 * len(kept))]
    return sum(losses) / len(losses)


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("model", choices=sorted(SHAPES))
    parser.add_argument("out", type=Path, help="directory of the checkpoint")
    parser.add_argument("--seconds", type=float, default=540.0, help="end of this call")
    parser.add_argument(
        "--steps", type=int, default=40_000, help="of the whole training, those before --resume counted"
    )
    parser.add_argument("--decay", type=float, default=0.35, help="share of the steps in which the rate falls")
    parser.add_argument("--tokens", type=int, default=65_536, help="of a batch")
    parser.add_argument("--examples", type=int, default=960_000, help="of the corpus, rounded up to a multiple of 128")
    parser.add_argument("--problems", type=int, default=256, help="answered at the end; 0: none")
    parser.add_argument("--seed", type=int, default=0, help="of corpus, weights and noise")
    parser.add_argument("--clock", action="store_true", help="stages and rate follow --seconds, not --steps")
    parser.add_argument("--corpus", type=Path, metavar="DIR", help="what was collected for tiny-prose")
    parser.add_argument("--resume", type=Path, help="directory of a checkpoint to go on from")
    return parser


if __name__ == "__main__":
    sys.exit(main())
