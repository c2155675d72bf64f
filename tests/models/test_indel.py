"""InDel: control tokens insert and delete within a block, and never stay; without them it is editing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asynclane.models.exec.runner import Runner
from asynclane.scheduler import ParamError, VocabularyFacts, refuse, resolve
from asynclane.scheduler.decoding.commit.host.indel import applied
from asynclane.scheduler.decoding.vocabulary import Vocabulary
from asynclane.server.engine.wiring import build_parts
from asynclane.server.settings import Settings, SettingsError

from ..support.cases import CHATS, network
from ..support.checkpoints import write_checkpoint
from ..support.driver import Spec, run
from ..support.fakes import END, LETTERS, MASK, PIECES, ScriptedExecutor

A, B, C, D, DELETE, SPLIT = 4, 5, 6, 7, 8, 9
CONTROLS = Vocabulary(PIECES, MASK, [END], (DELETE, SPLIT))


def test_control_tokens_change_a_block_and_not_its_length() -> None:
    before, original = np.array([A, B, C, D, MASK], np.int32), np.array([False, False, False, False, True])

    def block(*written: int) -> tuple[list[int], list[bool]]:
        tokens, flags = applied(np.array(written, np.int32), before, original, (DELETE, SPLIT), MASK)
        return tokens.tolist(), flags.tolist()

    assert block(A, B, C, D, MASK) == ([A, B, C, D, MASK], original.tolist())
    assert block(A, DELETE, C, D, MASK) == ([A, C, D, MASK, MASK], [False, False, False, True, False])
    assert block(A, B, SPLIT, D, MASK) == ([A, B, MASK, C, D], [False] * 5)  # the tail is lost
    assert block(A, DELETE, B, SPLIT, D) == ([A, B, MASK, D, D], original.tolist())
    assert block(*[DELETE] * 5) == ([MASK] * 5, [False] * 5)


def test_a_doubled_token_is_deleted_and_a_missing_one_inserted() -> None:
    """By a network that wants the text ABCD, and sees only what stands where."""
    spec = Spec([2], 4, "indel", {"block_length": 4, "early_stop": False})
    canvases: list[list[int]] = []

    class Network(ScriptedExecutor):
        def place(self, plan: Any) -> None:
            super().place(plan)
            canvases.append(self.canvases[0][1:5].tolist())

    def propose(slot: int, position: int) -> tuple[int, float]:
        canvas, at = canvases[-1], position - 1
        if canvas == [MASK] * 4:
            return (A, B, B, D)[at], 0.9
        wanted = {2: DELETE} if canvas == [A, B, B, D] else {2: SPLIT} if canvas == [A, B, D, D] else {}
        return wanted.get(at, (A, B, C, D)[at] if MASK in canvas else canvas[at]), 0.9

    (answer,) = run(Network(propose), CONTROLS, [spec])
    assert canvases == [[MASK] * 4, [A, B, B, D], [A, B, D, MASK], [A, B, C, D]]
    assert answer.text == [A, B, C, D]


@pytest.mark.parametrize("name", ["whole-canvas", "block-causal"])
def test_control_tokens_never_reach_a_client_and_every_block_ends(name: str) -> None:
    net = network(name)
    specs = [Spec(prompt, 24, "indel", {"edit_steps": 6, "early_stop": False}) for prompt in net.prompts]
    found = run(net.runner, CONTROLS, specs, net.limits, pattern=net.pattern)
    plain = run(net.runner, net.vocabulary, specs, net.limits, pattern=net.pattern)
    assert [answer.text for answer in found] != [answer.text for answer in plain]
    for answer in found:
        assert len(answer.text) == 24
        assert not {DELETE, SPLIT, MASK} & {*answer.text}
        assert answer.streamed == answer.text
        blocks = 24 // 8 + 1 if net.pattern.block_size else 1
        assert answer.steps <= blocks * (32 + 6 + 1)


def test_without_control_tokens_it_is_editing(runner: Runner, vocabulary: Vocabulary) -> None:
    """As long as no block comes again."""
    params = {"threshold": 0.7, "edit_threshold": 0.5, "early_stop": False}
    for prompt in CHATS[:1]:
        ours, edited = run(runner, vocabulary, [Spec(prompt, 32, each, params) for each in ("indel", "llada2")])
        assert (ours.canvas.tolist(), ours.steps) == (edited.canvas.tolist(), edited.steps)


def test_no_other_decoder_serves_a_model_with_control_tokens(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert len(PIECES) > SPLIT, LETTERS
    refuse(VocabularyFacts(resolve("indel", {}, 16), CONTROLS))
    with pytest.raises(ParamError, match="decoder 'llada2' does not apply this model's tokens that insert and delete"):
        refuse(VocabularyFacts(resolve("llada2", {}, 16), CONTROLS))
    model = write_checkpoint(tmp_path / "m", "LLaDA2MoeModelLM", delete_token_id=300, split_token_id=301)
    small: dict[str, Any] = {"model": str(model), "max_num_seqs": 2, "max_step_tokens": 64}
    with pytest.raises(SettingsError, match=r"^the default decoder, 'asynclane': .* use 'indel'"):
        build_parts(Settings(**small))
    with pytest.raises(SettingsError, match=r"^--preset llada2.0: .* use 'indel'"):
        build_parts(Settings(**small, preset="llada2.0"))
    build_parts(Settings(**small, preset="llada2.2")).close()
    assert any("LLaDA2.2 chooses experts for whole blocks" in message for message in caplog.messages)
