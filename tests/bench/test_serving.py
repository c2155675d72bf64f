"""A measurement on a GPU can be prepared on any machine, and is refused where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from asynclane.bench.steps import checkpoint, serving
from asynclane.server.engine.messages import AnswerOptions
from asynclane.server.engine.offline import Offline
from asynclane.server.metrics import Metrics, StepReport
from asynclane.server.settings import Settings


def test_a_random_checkpoint_is_served_like_any_other(tmp_path: Path) -> None:
    assert checkpoint.main([str(tmp_path / "model"), "--shape", "small"]) == 0
    with Offline(Settings(model=str(tmp_path / "model"), device="cpu", kv_cache_tokens=4096)) as offline:
        (answer,) = offline.answer([[100, 101, 102]], AnswerOptions(8))
    assert len(answer.token_ids) == answer.usage.completion_tokens <= 8
    assert answer.text.split() == [word for word in answer.text.split() if word.startswith("w") or word == "."]


def test_step_seconds_are_those_of_the_metrics() -> None:
    metrics = Metrics()
    assert serving.step_seconds(metrics) == (0, 0, 0)
    metrics.observe_step(StepReport(row_tokens=1, budget_tokens=1, committed=1, host_s=0.25, device_s=0.5))
    assert serving.step_seconds(metrics) == (0.25, 0.5, 1)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_ends_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        serving.main(["--model", "tiny-llada"])
    assert ended.value.code == 2
    assert capsys.readouterr().err == "python -m asynclane.bench.steps.serving: this needs a GPU that torch sees\n"
