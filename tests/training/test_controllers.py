"""Learnt commit rules: the same each time they are trained, and the server computes what was learnt."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from asynclane.scheduler.decoding.commit.host import learn2pd, tspd
from asynclane.scheduler.decoding.commit.shared.weights import weights
from asynclane.training.controllers import __main__ as recipe
from asynclane.training.controllers import nets
from asynclane.training.corpus import MARKS
from asynclane.training.probe import Look
from asynclane.training.traces import Known


def written(path: Path, seed: int, problems: int = 20) -> Path:
    """Traces of answers of 12 tokens, of which a position is right once its confidence is high."""
    rng = np.random.default_rng(seed)
    columns: dict[str, list[float]] = {name: [] for name in "problem call position confidence right".split()}
    for problem in range(problems):
        open_ = list(range(12))
        for call in range(8):
            shown = rng.random(len(open_)) ** 0.5
            for position, confidence in zip(open_, shown, strict=True):
                for name, value in zip(columns, (problem, call, position, confidence, confidence > 0.8), strict=True):
                    columns[name].append(value)
            open_ = [position for position, confidence in zip(open_, shown, strict=True) if confidence <= 0.8]
    right = np.array(columns.pop("right"))
    arrays = {name: np.array(column) for name, column in columns.items()}
    np.savez(path, **arrays, token=right.astype(np.int16), final=np.ones(len(right), np.int16), entropy=right + 0.1)
    return path


def test_training_is_the_same_again_and_ranks_what_is_right_first(tmp_path: Path) -> None:
    files = [str(written(tmp_path / f"{seed}.npz", seed)) for seed in (0, 1)]
    made = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        assert recipe.main([*files, "--out", str(tmp_path / name), "--shorten", "40"]) == 0
        made.append({rule: dict(np.load(tmp_path / name / f"{rule}.npz")) for rule in ("learn2pd", "tspd")})
    for rule, arrays in made[0].items():
        for key, array in arrays.items():
            assert (array == made[1][rule][key]).all(), (rule, key)
    windows = np.ones((1, learn2pd.WINDOW), np.float32)
    windows[0, :2] = (0.3, 0.95)
    low, high = learn2pd.Filter(made[0]["learn2pd"]).scores(windows)[0, :2]
    assert low < high


def test_the_server_computes_what_was_learnt() -> None:
    torch.manual_seed(0)
    filter_, controller = nets.Filter(), nets.Controller()
    windows = torch.rand(5, learn2pd.WINDOW)
    scores = torch.from_numpy(learn2pd.Filter(filter_.arrays()).scores(windows.numpy()))
    torch.testing.assert_close(scores, filter_(nets.Windows(windows, windows, windows)).sigmoid())
    seen, calls = torch.rand(6, 7, 4), torch.full((6,), 7)
    wanted = controller(nets.Histories(seen, seen, seen, calls)).sigmoid()
    unit, state = tspd.Controller(controller.arrays()), np.zeros((6, tspd.WIDTH), np.float32)
    for call in range(7):
        scores_, state = unit.step(seen[:, call].numpy(), state)
        torch.testing.assert_close(torch.from_numpy(scores_).float(), wanted[:, call])


@pytest.mark.parametrize(("rule", "size"), [("learn2pd", 2112), ("tspd", 2185)])
def test_what_is_shipped_is_as_small_as_it_says(rule: str, size: int) -> None:
    assert sum(array.size for array in weights(rule).values()) == size


def test_greedy_traces_commit_all_that_is_right_or_one_token_that_is_known() -> None:
    known, mask = torch.tensor([[7, 8, 9, MARKS.mask], [7, 8, 9, 6]]), MARKS.mask
    proposed = torch.tensor([[7, 1, 9, 2], [1, 1, 1, 1]])
    confidence = torch.tensor([[0.1, 0.9, 0.2, 0.9], [0.1, 0.2, 0.9, 0.3]])
    look = Look(torch.arange(2), proposed, confidence, confidence, torch.ones(2, 4, dtype=torch.bool))
    assert Known(known)(look).tolist() == [[7, mask, 9, mask], [mask, mask, 9, mask]]
