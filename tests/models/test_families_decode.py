"""Every family answers with every decoder that suits it, the same alone and batched, and refuses others by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from asynclane.models.checkpoint.config import read_config
from asynclane.models.checkpoint.registry import Hardware, load_runner
from asynclane.models.exec.memory import Memory
from asynclane.models.exec.runner import Runner
from asynclane.scheduler.decoding.attention_pattern import AttentionPattern
from asynclane.scheduler.decoding.params import ParamError
from asynclane.scheduler.decoding.registry import DECODERS
from asynclane.scheduler.decoding.resolve import resolve
from asynclane.scheduler.decoding.vocabulary import Vocabulary
from asynclane.scheduler.memory.pages import Limits

from ..support.checkpoints import CONFIGS, write_checkpoint
from ..support.driver import FILLING, Ask, refusal, run
from ..support.scale import ALL

LIMITS = Limits(slots=8, pages=64, page_size=16, step_tokens=256, max_model_len=96, max_queue=64)
LENGTH = 16
PROMPTS = ([7, 300, 21, 999], [5 + n for n in range(17)], [44])


@pytest.fixture(scope="module", params=tuple(CONFIGS))
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Runner, AttentionPattern]:
    directory: Path = write_checkpoint(tmp_path_factory.mktemp("family"), request.param)
    config = read_config(directory)
    memory = Memory(LIMITS.slots, LIMITS.page_size, LIMITS.step_tokens, LIMITS.pages * LIMITS.page_size)
    runner = load_runner(directory, config, memory, Hardware("cpu", "float32"), [1]).runner
    return runner, config.pattern


@pytest.mark.parametrize("decoder", DECODERS)
def test_every_family_answers_with_every_decoder_that_suits_it(
    family: tuple[Runner, AttentionPattern], decoder: str, vocabulary: Vocabulary
) -> None:
    runner, pattern = family
    if (message := refusal(decoder, pattern)) is not None:
        with pytest.raises(ParamError, match=message):
            resolve(decoder, {}, LENGTH, pattern)
        return
    params = {"early_stop": False, **FILLING.get(decoder, {})}
    asks = [Ask(prompt, LENGTH, decoder, params) for prompt in PROMPTS]
    together = run(runner, vocabulary, asks, LIMITS, pattern=pattern)
    for sequence in together:
        assert vocabulary.mask_id not in sequence.canvas
    one = list(DECODERS).index(decoder) % len(PROMPTS)  # each prompt with a third of the decoders
    for number in range(len(PROMPTS)) if ALL else [one]:
        (alone,) = run(runner, vocabulary, [asks[number]], LIMITS, pattern=pattern)
        assert alone.canvas.tolist() == together[number].canvas.tolist()
