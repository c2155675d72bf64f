"""The recipe trains the network that the server runs, on noise that means what it says, the same for the same seed."""

from __future__ import annotations

import importlib
import json
from collections import Counter
from dataclasses import replace
from itertools import islice
from pathlib import Path
from random import Random
from typing import cast

import numpy as np
import pytest
import torch

from asynclane.bench.load.problems import problems
from asynclane.models.checkpoint.config import read_config
from asynclane.models.checkpoint.registry import Hardware, find_model, load_runner
from asynclane.models.exec.memory import Memory
from asynclane.scheduler.contract import GREEDY, DeviceCommitRule, Placement, Row, Span, StepPlan
from asynclane.server.text.tokenizer import Tokenizer
from asynclane.training import frequencies, traces, train
from asynclane.training.batches import SIZES, batches, shelves
from asynclane.training.corpus import MARKS, corpus, examples
from asynclane.training.export import export, restore
from asynclane.training.network import Network
from asynclane.training.noise import Rows, canvas, copies
from asynclane.training.shapes import SHAPES, Shape
from asynclane.training.trainer import loss_of

from ..support.scale import LONG, part

TOKENIZER = find_model("tiny-llada")
CPU = torch.device("cpu")
PUBLIC = {"tiny-dream": "Qwen2", "tiny-sdar": "Qwen3"}  # names in transformers


def scattered(name: str) -> Network:
    """A network whose weights are large enough that each mistake shows."""
    torch.manual_seed(3)
    network = Network(SHAPES[name])
    with torch.no_grad():
        for weight in network.parameters():
            weight.normal_(0.0 if weight.dim() == 2 else 1.0, 0.08 if weight.dim() == 2 else 0.2)
    return network


def some_rows() -> Rows:
    torch.manual_seed(0)
    return Rows(torch.randint(6, 1400, (40, 96)), torch.randint(5, 40, (40, 1)), torch.full((40, 1), 50))


@pytest.mark.parametrize("name", part(PUBLIC, 2))
def test_a_checkpoint_is_what_the_public_code_of_its_shape_computes(name: str, tmp_path: Path) -> None:
    network, block = scattered(name), SHAPES[name].block
    export(network, tmp_path, TOKENIZER)
    restore(network, tmp_path)  # rounded as the checkpoint is
    said = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    del said["architectures"], said["model_type"]
    transformers = importlib.import_module("transformers")  # here, since each process of the tests would take seconds
    config, model = (getattr(transformers, PUBLIC[name] + part) for part in ("Config", "ForCausalLM"))
    public = model.from_pretrained(tmp_path, config=config(**said), dtype=torch.float32)
    ids, position = torch.randint(6, 1400, (2, 50)), torch.arange(50)
    seen = position[None] // block <= position[:, None] // block if block else torch.ones(50, 50, dtype=torch.bool)
    added = torch.zeros(2, 1, 50, 50).masked_fill(~seen, -torch.inf)
    with torch.inference_mode():
        wanted = public(ids, attention_mask=added).logits
        torch.testing.assert_close(network(ids, position[None], added), wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", SHAPES)
def test_the_server_reads_what_the_recipe_writes_and_computes_the_same(name: str, tmp_path: Path) -> None:
    network, shape = scattered(name), SHAPES[name]
    export(network, tmp_path, TOKENIZER)
    restore(network, tmp_path)
    config = read_config(tmp_path)
    assert (config.block_size, config.logit_shift) == (shape.block, shape.shift)
    memory = Memory(slots=1, page_size=16, step_tokens=64, cache_tokens=64)
    runner = load_runner(tmp_path, config, memory, Hardware("cpu", "float32"), [1]).runner
    ids, position = torch.randint(6, shape.vocab - 8, (48,)), torch.arange(48)
    spans = (Span(config.logit_shift, 48, DeviceCommitRule(sure=0, threshold=2.0)),)
    row = Row(0, 0, 48, 48, spans, GREEDY, step=0)
    got = runner.logits(StepPlan((Placement(0, ids.numpy().astype(np.int32), (0, 1, 2)),), (row,)))
    block = shape.block or 48
    seen = (position[None] // block <= position[:, None] // block)[None, None]
    with torch.inference_mode():
        wanted = network(ids[None], position[None], seen)[0]
    torch.testing.assert_close(got, wanted[: 48 - config.logit_shift], atol=1e-4, rtol=1e-4)


def test_noise_hides_answers_and_is_paid_for_by_what_it_hides() -> None:
    rows = some_rows()
    seen = canvas(rows)
    hidden = seen.ids == MARKS.mask
    assert torch.equal(seen.ids[~hidden], rows.ids[~hidden])
    assert torch.equal(seen.weights > 0, hidden)
    in_prompt = (hidden & (seen.positions < rows.prompt)).any(1)
    assert 0 <= in_prompt.float().mean() < 0.3


def test_a_noisy_block_sees_clean_text_before_it_and_no_answer_of_its_own() -> None:
    rows = some_rows()._replace(prompt=torch.full((40, 1), 20))
    seen = copies(rows, block=8, room=72)
    assert seen.mask is not None
    block = seen.positions // 8
    noisy = torch.arange(seen.ids.shape[1]) >= 96
    clean_seen = seen.mask[:, 0] & ~noisy[None, None]
    for row in range(40):
        for query in (97, 130, 160):
            keys = clean_seen[row, query].nonzero()[:, 0]
            assert block[row, keys].max() < block[row, query]
            later = seen.mask[row, 0, query] & (block[row] > block[row, query])
            assert not later.any()
    assert not (seen.mask[:, 0, :96] & noisy[None, None]).any(), "clean text never sees noise"
    hidden = seen.ids[:, 96:] == MARKS.mask
    assert torch.equal(seen.weights > 0, hidden)
    assert not (hidden & (seen.positions[:, 96:] < 20)).any()


def test_without_lag_a_second_copy_is_what_the_server_sees_when_it_decodes_the_block() -> None:
    network = scattered("tiny-sdar")
    rows = Rows(torch.randint(6, 1400, (1, 64)), torch.tensor([[20]]), torch.tensor([[44]]))
    while True:
        seen = copies(rows, block=16, room=48)
        assert seen.mask is not None
        if not seen.mask[0, 0, 64 + 16, 64:80].any():  # a block after the first that sees no noisy one before it
            break
    second = seen.ids[:, 64 + 16 : 64 + 32]  # positions 32 to 47
    canvas_ids = torch.cat((rows.ids[:, :32], second), dim=1)
    position = torch.arange(48)
    block_causal = (position[None] // 16 <= position[:, None] // 16)[None, None]
    with torch.inference_mode():
        got = network(seen.ids, seen.positions, seen.mask)[:, 64 + 16 : 64 + 32]
        torch.testing.assert_close(got, network(canvas_ids, position[None], block_causal)[:, 32:], atol=1e-4, rtol=1e-4)


def test_with_a_shift_the_position_before_answers() -> None:
    logits = torch.zeros(1, 4, 8)
    logits[0, 1, 5] = 100.0  # says 5 for position 2
    targets, weights = torch.full((1, 4), 5), torch.tensor([[0.0, 0.0, 1.0, 0.0]])
    assert loss_of(logits, targets, weights, shift=1) < 1e-6
    assert loss_of(logits, targets, weights, shift=0) > 1


def test_the_corpus_is_the_same_every_time_and_holds_no_problem_that_evaluation_asks() -> None:
    one, again = (corpus(TOKENIZER / "tokenizer.json", seed=4, count=128) for _ in range(2))
    assert all(np.array_equal(a, b) and p == q for (a, p), (b, q) in zip(one, again, strict=True))
    asked = {problem.prompt for seed in range(4) for problem in problems(seed, 200, ("math", "multi"))}
    assert not asked & {prompt for prompt, _ in islice(examples("corpus 0 0"), 4000)}


def test_every_example_fits_its_shelf_with_room_for_an_end() -> None:
    found = corpus(TOKENIZER / "tokenizer.json", seed=1, count=256)
    for block in (0, 16):
        kept = shelves(found, block, CPU)
        assert sum(len(shelf.prompt) for shelf in kept) > 0.97 * len(found)
        for shelf in kept:
            ends = (shelf.prompt + shelf.answer).long()
            assert (shelf.ids.gather(1, ends[:, None]) == MARKS.end).all()
    assert {shelf.length for shelf in kept} <= {length for length, _ in SIZES}


@LONG
def test_training_goes_on_where_it_ended_and_repeats_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "tiny-sdar"
    small = replace(SHAPES[name], dim=32, layers=1, heads=2, kv_heads=1, ff=48)
    monkeypatch.setitem(cast("dict[str, Shape]", SHAPES), name, small)
    flags = ["--examples", "256", "--tokens", "2200", "--steps", "3", "--problems", "1"]

    def trained(out: str, *more: str) -> Path:
        assert train.main([name, str(tmp_path / out), *flags, *more]) == 0
        return tmp_path / out

    first, second = trained("first"), trained("second")
    assert (first / "model.safetensors").read_bytes() == (second / "model.safetensors").read_bytes()
    longer = trained("longer", "--resume", str(first), "--steps", "4")
    assert json.loads((longer / "state.json").read_text(encoding="utf-8"))["step"] == 4
    assert (first / "model.safetensors").read_bytes() != (longer / "model.safetensors").read_bytes()
    with pytest.raises(SystemExit, match=f"is a {name}"):
        train.main(["tiny-llada", str(tmp_path / "other"), "--resume", str(first)])


def test_batches_keep_the_loss_of_a_size_comparable() -> None:
    kept = shelves(corpus(TOKENIZER / "tokenizer.json", seed=1, count=256), 0, CPU)
    draws = torch.Generator().manual_seed(0)
    for rows, room in islice(batches(kept, 4096, 0.25, Random(0), draws), 12):
        assert room == 0
        assert rows.ids.numel() <= 4096
        assert (rows.prompt < rows.ids.shape[1]).all()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--tokens", "16"], "--tokens must be at least"),
        (["--steps", "0"], "--steps 0"),
        (["--resume", "nowhere"], "nothing to go on from"),
    ],
)
def test_training_refuses_wrong_flags_before_it_begins(
    flags: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        train.main(["tiny-sdar", str(tmp_path / "out"), *flags])
    assert message in str(refused.value) + capsys.readouterr().err


@LONG
def test_traces_have_every_open_position_of_each_forward_and_its_final_token(tmp_path: Path) -> None:
    assert traces.main(["tiny-sdar", str(tmp_path / "t.npz"), "--problems", "1", "--seed", "3"]) == 0
    with np.load(tmp_path / "t.npz") as found:
        columns = dict(found)
    assert len({len(column) for column in columns.values()}) == 1
    assert columns["call"].max() > 5
    assert (columns["confidence"] > 0).all()
    assert (columns["confidence"] <= 1.0 + 1e-6).all()
    assert (columns["entropy"] >= 0).all()
    for call in range(columns["call"].max() + 1):  # the surest one commits, and is open no more
        now = columns["call"] == call
        best = np.flatnonzero(now)[columns["confidence"][now].argmax()]
        assert columns["token"][best] == columns["final"][best]
        assert columns["position"][best] not in columns["position"][columns["call"] > call]


def test_tokens_are_counted_with_the_end_of_each_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, documents = TOKENIZER, tmp_path / "documents"
    text = Tokenizer(model)
    documents.write_text("Tom has 12 books.\nTom\n", encoding="utf-8")
    assert frequencies.main([str(model), str(documents)]) == 0
    counts = json.loads(capsys.readouterr().out)
    expected = Counter([*text.encode("Tom has 12 books."), *text.encode("Tom"), *[text.vocabulary.filler] * 2])
    assert {token: count for token, count in enumerate(counts) if count} == expected
    assert frequencies.main([str(model), "--examples", "1000"]) == 0
    assert capsys.readouterr().out == (model / "token_frequencies.json").read_text(encoding="utf-8")
