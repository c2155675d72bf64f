"""The body of `/v1/completions`: prompts to continue or to score, and templates."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import (
    Field,
    PlainValidator,
    model_validator,
)

from ..errors import shown
from ..http.body import Strict, refused
from . import limits
from .requests import INT32, INT64, AnswerTokens, Choices, DecoderParams, GenerationRequest, Ranks
from .unsupported import COMPLETIONS, ELSEWHERE, unsupported_by

SAMPLES = 128  # of Monte Carlo, as in LLaDA's evaluation
# Parameters of an answer, of which the likelihood of a prompt has none.
NOT_SCORED = (
    *("stream", "suffix", "decoder", "stop", "stop_token_ids", "min_tokens", "ignore_eos"),
    *("presence_penalty", "frequency_penalty", "include_stop_str_in_output"),
)
NO_ANSWER = "not together with echo and logprobs, which score the prompt and write no answer"


def _prompts(value: object) -> list[str | list[int]]:
    """Return any of the four forms as a list of prompts. Raises for an empty one."""
    if value is None:
        return []
    prompts: list[Any] = value if isinstance(value, list) else [value]
    if _prompt_kind(value) == "ids":
        prompts = [value]
    elif len(prompts) > limits.PROMPTS:
        raise refused(None, f"must have at most {limits.PROMPTS} prompts, not {len(prompts)}")
    if {_prompt_kind(prompt) for prompt in prompts} not in ({"text"}, {"ids"}):
        reason = "must be a text, a list of texts, token ids or a list of such lists, none of them empty"
        raise refused(None, f"{reason}, not {shown(value)}")
    return prompts


def _prompt_kind(prompt: object) -> str | None:
    if isinstance(prompt, str) and prompt:
        return "text"
    if isinstance(prompt, list) and prompt and all(type(item) is int for item in prompt):
        return "ids"
    return None


Text = Annotated[str, Field(min_length=1)]  # and as long as the context allows, as are ids
Ids = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]
Several = Field(min_length=1, max_length=limits.PROMPTS)
Prompts = Text | Annotated[list[Text], Several] | Ids | Annotated[list[Ids], Several]


class Gap(Strict):
    """Positions of a template that are filled."""

    tokens: AnswerTokens


def _template_part(value: object) -> str | Gap:
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return Gap.model_validate(value)
    raise refused(None, f'must be a text, or a gap such as {{"tokens": 8}}, not {shown(value)}')


TemplatePart = Annotated[str | Gap, PlainValidator(_template_part, json_schema_input_type=str | Gap)]
# What a template excludes: it says itself what is given, how long an answer is, and where it ends.
NOT_IN_TEMPLATES = ("prompt", "suffix", "echo", "max_tokens", "min_tokens", "stop", "stop_token_ids")


class CompletionRequest(GenerationRequest):
    unsupported = unsupported_by(COMPLETIONS)
    elsewhere = ELSEWHERE[COMPLETIONS]

    prompt: Annotated[list[str | list[int]], PlainValidator(_prompts, json_schema_input_type=Prompts | None)] = Field(
        default_factory=list
    )
    template: Annotated[list[TemplatePart], Field(fail_fast=True, max_length=limits.TEMPLATE)] | None = None
    logprobs: Ranks | None = None
    echo: bool | None = None
    best_of: Choices | None = None
    suffix: str | None = None
    add_special_tokens: bool | None = None  # False: for a prompt that has the tokenizer's first token
    # With echo and logprobs: how the prompt's tokens are scored, and from which one on.
    max_tokens: Annotated[int, Field(ge=0, lt=INT64)] | None = None
    likelihood: Literal["chain", "monte-carlo"] | None = None
    likelihood_samples: Annotated[int, Field(ge=1, le=limits.SAMPLES)] | None = None
    likelihood_start: Annotated[int, Field(ge=1, lt=INT32)] | None = None

    @model_validator(mode="after")
    def _check_template(self) -> Self:
        if self.template is None:
            if not self.prompt:
                raise refused("prompt", "required, unless there is a template", code="missing_parameter")
            return self
        given = {param: getattr(self, param) for param in NOT_IN_TEMPLATES}
        given |= {name: getattr(self, name) is not None for name in ("logprobs", "prompt_logprobs")}
        given["best_of"] = self.choices > self.kept
        for param, value in given.items():
            if value:
                raise refused(param, "not together with template")
        if self.wanted is not None:
            raise refused(self.wanted.param, "not together with template: a grammar writes one text, without gaps")
        after_gap = False
        for at, part in enumerate(self.template):
            if part and after_gap and isinstance(part, Gap):
                raise refused(f"template.{at}", "a gap follows a gap: make them one, or put a text between them")
            after_gap = isinstance(part, Gap) or (after_gap and not part)
        if not any(isinstance(part, Gap) for part in self.template):
            raise refused("template", 'has no gap to fill: give one, such as {"tokens": 8}')
        return self

    @model_validator(mode="after")
    def _check_likelihood(self) -> Self:
        sampled = self.likelihood == "monte-carlo"
        if not self.scores_prompt:
            if self.max_tokens == 0:
                raise refused("max_tokens", "0 is for the likelihood of a prompt: give echo: true and logprobs, too")
            for param in ("likelihood", "likelihood_samples", "likelihood_start"):
                if getattr(self, param) is not None:
                    raise refused(param, "only with echo: true and logprobs")
            return self
        if self.max_tokens not in (0, 1):
            raise refused("max_tokens", "with echo and logprobs it is 0, or 1 for one token more than the prompt")
        if self.likelihood_samples is not None and not sampled:
            raise refused("likelihood_samples", "only with likelihood: 'monte-carlo'")
        if sampled and self.max_tokens:
            raise refused("max_tokens", "0 is needed by likelihood: 'monte-carlo', which only scores the prompt")
        if sampled and self.logprobs:
            raise refused("logprobs", "0 is needed by likelihood: 'monte-carlo', a mean over canvases")
        given = {param: getattr(self, param) for param in (*NOT_SCORED, *DecoderParams.model_fields)}
        given |= {"n": self.kept > 1, "best_of": self.choices > 1}
        given["prompt_logprobs"] = self.prompt_logprobs is not None
        given["repetition_penalty"] = self.repetition_penalty not in (None, 1)
        if self.wanted is not None:
            raise refused(self.wanted.param, NO_ANSWER)
        for param, value in given.items():
            if value or (value is not None and param in DecoderParams.model_fields):
                raise refused(param, NO_ANSWER)
        if self.max_tokens == 0:
            self._check_nothing_is_drawn()
        return self

    def _check_nothing_is_drawn(self) -> None:
        """Refuse parameters that say how tokens are drawn. A `seed` alone draws none, here as at temperature 0."""
        neutral = {"temperature": (0, 1), "top_p": (1,), "top_k": (-1, 0), "min_p": (0,)}
        for param, values in neutral.items():
            given = getattr(self, param)
            if given is not None and given not in values:
                allowed = " or ".join(map(str, values))
                raise refused(param, f"no token is drawn where max_tokens is 0: give {allowed}, or leave it out")

    @property
    def scores_prompt(self) -> bool:
        """True if the answer is the prompt with its log-probabilities."""
        return bool(self.echo) and self.logprobs is not None

    @property
    def samples(self) -> int:
        """The samples of Monte Carlo; 0: the prompt is scored as a chain."""
        return (self.likelihood_samples or SAMPLES) if self.likelihood == "monte-carlo" else 0

    @model_validator(mode="after")
    def _check_completion(self) -> Self:
        if self.best_of is not None and self.best_of < self.kept:
            raise refused("best_of", f"must be at least n, which is {self.kept}, not {self.best_of}")
        if self.choices > self.kept and self.stream:
            raise refused("best_of", "cannot be streamed, since the best is known at the end: leave out one of them")
        if self.suffix and self.wanted is not None:
            raise refused(
                "suffix", f"not together with {self.wanted.param}: no grammar knows how to end before a suffix"
            )
        if self.tries_lengths and self.stream:
            raise refused("suffix", "cannot be streamed while several lengths are tried: give max_tokens, or no stream")
        return self

    @property
    def choices(self) -> int:
        return self.best_of or self.kept

    @property
    def limit_param(self) -> str:
        return "max_tokens" if self.template is None else "template"

    @property
    def answer_limit(self) -> int | None:
        if self.template is None:
            return self.max_tokens
        return sum(part.tokens for part in self.template if isinstance(part, Gap))

    @property
    def tries_lengths(self) -> bool:
        """True for an answer before a suffix, which must have the right length, without a length given."""
        return bool(self.suffix) and self.answer_limit is None

    @property
    def ranks(self) -> int | None:
        # The best answer is chosen by its log-probability, shown or not.
        chosen = 0 if self.choices > self.kept or self.tries_lengths else None
        return chosen if self.logprobs is None else self.logprobs

    @property
    def ranks_param(self) -> str:
        if self.logprobs is None:
            return "best_of" if self.choices > self.kept else "suffix"
        return "logprobs"

    @property
    def shows_scores(self) -> bool:
        return self.logprobs is not None
