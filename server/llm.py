"""`LLM`: a model in this process, called from Python as vLLM's class of that name is. Parameters are those of the HTTP
API, checked by the same code, so a wrong one raises what the server would answer."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from itertools import islice
from os import PathLike, fspath
from typing import Any, Self, TypeVar

import numpy as np
from pydantic import ValidationError
from tqdm.auto import tqdm

from ..scheduler import nearest
from .api.generation import Prompt, check_named_tokens, check_token, planned_choices
from .api.likelihood import ScoredAnswers, candidate_tokens
from .engine.messages import AnswerOptions, Delta, Finish, Usage
from .engine.offline import Offline, OfflineAnswer
from .errors import ContextLengthExceeded, InvalidValue, from_validation, shown
from .schema.chat_request import ChatCompletionRequest
from .schema.completion_request import CompletionRequest
from .schema.requests import DecoderParams, GenerationRequest
from .settings import OF_LLM, Settings, SettingsError
from .text.lanes import LaneEvent
from .text.logprobs import TokenLogprob
from .text.tokenizer import TextTooLong

Request = TypeVar("Request", bound=GenerationRequest)
ChatMessage = Mapping[str, Any]  # role and content, as in OpenAI's API
TextOrIds = str | Sequence[int] | Mapping[str, Any]  # the last as vLLM has it: "prompt", or "prompt_token_ids"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How prompts are answered; the names are those of the HTTP API. None is the default there.

    `max_tokens` None: as long as the context allows, and at most the setting `default_max_tokens`. `logprobs` requests
    log-probabilities, with so many likeliest tokens for each, and `prompt_logprobs` those of the prompt.
    `structured_outputs` requires a format, as `{"json": SCHEMA}`, `{"regex": TEXT}` or `{"choice": TEXTS}`; a choice
    with `logprobs` has the probabilities of all its texts. `decoder` names a decoding method, of which `params` sets
    parameters. `lanes` records what each step did.
    """

    n: int = 1
    temperature: float = 0.0
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    stop: str | Sequence[str] | None = None
    include_stop_str_in_output: bool | None = None
    stop_token_ids: Sequence[int] | None = None
    ignore_eos: bool | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: Mapping[int, float] | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    structured_outputs: Mapping[str, Any] | None = None
    bad_words: Sequence[str] | None = None
    allowed_token_ids: Sequence[int] | None = None
    decoder: str | None = None
    params: Mapping[str, float | str | bool] = field(default_factory=dict)
    lanes: bool = False

    def body(self) -> dict[str, Any]:
        """The parameters that both endpoints have. Raises `InvalidValue`."""
        if not isinstance(self.lanes, bool):
            raise InvalidValue("lanes", f"lanes: must be true or false, not {shown(self.lanes)}")
        if self.max_tokens == 0:  # which is for the likelihood of a prompt over HTTP
            raise InvalidValue("max_tokens", "max_tokens: must be greater than or equal to 1, not 0")
        own = {"params", "lanes", "logprobs", "logit_bias"}
        values = {each.name: getattr(self, each.name) for each in fields(self) if each.name not in own}
        for name in ("stop", "stop_token_ids", "bad_words", "allowed_token_ids"):
            values[name] = _listed(values[name])
        if not isinstance(self.params, Mapping):
            raise InvalidValue("params", f"params: must be a mapping of names to values, not {shown(self.params)}")
        for name in self.params:
            if name not in DecoderParams.model_fields:
                meant = nearest(str(name), DecoderParams.model_fields)
                hint = (
                    f": did you mean {meant!r}?" if meant else "; there are: " + ", ".join(DecoderParams.model_fields)
                )
                reason = f"params: no decoder has {name!r}{hint}"
                raise InvalidValue(name, reason, code="unknown_parameter")
        values["logit_bias"] = bias = self.logit_bias
        if isinstance(bias, Mapping):
            values["logit_bias"] = {str(token): value for token, value in bias.items()}
        return {name: value for name, value in {**self.params, **values}.items() if value is not None}


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One answer. `usage` counts its tokens, forwards, lanes and positions; that of a prompt's first answer also those
    that score the prompt and the texts of a choice. `choice_probabilities` sum up to 1."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    usage: Usage
    logprobs: tuple[TokenLogprob, ...] | None
    lanes: tuple[LaneEvent, ...]
    choice_probabilities: Mapping[str, float] | None


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """The answers to one prompt. `prompt` is None for messages and token ids. `prompt_logprobs` has an entry for each
    token of the prompt; the first has no score."""

    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    outputs: tuple[CompletionOutput, ...]
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None


@dataclass(frozen=True, slots=True)
class Planned:
    """The answers to one prompt, and the other answers that score tokens for them."""

    prompt: str | None
    ids: list[int]
    choices: list[AnswerOptions]
    body: GenerationRequest
    scored: ScoredAnswers

    @property
    def requests(self) -> list[tuple[list[int], AnswerOptions]]:
        scorings = [(one.ids, self.body.scoring_options(one.given, one.ranks)) for one in self.scored.scorings]
        return [*((self.ids, options) for options in self.choices), *scorings]

    def output(self, answers: Sequence[OfflineAnswer]) -> RequestOutput:
        """`answers` to all `requests`."""
        found = list(zip(self.scored.scorings, answers[len(self.choices) :], strict=True))
        outputs, scores = [], None
        for index, (options, answer) in enumerate(zip(self.choices, answers, strict=False)):
            extras = self.scored.extras(answer.candidate_logprobs, found)
            outputs.append(
                CompletionOutput(
                    index=index,
                    text=answer.text,
                    token_ids=answer.token_ids,
                    finish_reason=Finish(answer.finish).value,
                    usage=answer.usage if index else answer.usage.with_costs([one.usage for _, one in found]),
                    logprobs=None if options.ranks is None else answer.scores,
                    lanes=answer.lanes,
                    choice_probabilities=dict(extras.probabilities) or None,
                )
            )
            scores = None if extras.prompt_scores is None else (None, *extras.prompt_scores)
        return RequestOutput(self.prompt, tuple(self.ids), tuple(outputs), scores)


class LLM:
    """A model that answers in this process. Close it, or use it as a context manager: it holds the model's memory."""

    def __init__(self, model: str | PathLike[str] | None = None, **settings: Any) -> None:
        """`model` and its default as in `asynclane serve`; `settings` are its flags, with underscores, except those of
        HTTP. Raises `SettingsError`, `ModelError` (both are `ValueError`) and `OSError` with one line that says what is
        wrong."""
        of_servers = {each.name for each in fields(Settings)} - {*OF_LLM}
        for name in settings:
            if name in of_servers:
                raise SettingsError(f"{name!r} is for a server, and an LLM is none: leave it out")
            if name not in OF_LLM:
                likeliest = get_close_matches(name, OF_LLM, 1, cutoff=0)[0]
                reason = f"{name!r} is no setting: did you mean {likeliest!r}? 'asynclane serve --help' lists all"
                raise SettingsError(reason)
        path = fspath(model) if isinstance(model, PathLike) else model
        given = settings if path is None else {**settings, "model": path}
        self._offline = Offline(Settings(**given)).__enter__()
        self._close = weakref.finalize(self, self._offline.__exit__)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End what is running and free the memory. Later calls do nothing."""
        self._close()

    def generate(
        self,
        prompts: TextOrIds | Sequence[TextOrIds],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Answer prompts as they are, texts or token ids, all together, with the same parameters or with those of each.
        Raises `InvalidValue` and `ContextLengthExceeded`."""
        return self._answer([self._text(*each) for each in _paired(_several(prompts), sampling_params)], use_tqdm)

    def chat(
        self,
        messages: Sequence[ChatMessage] | Sequence[Sequence[ChatMessage]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Answer one conversation or several, through the model's chat template. Raises what `generate` does."""
        several = _listed(messages)
        one = not isinstance(several, list) or not several or isinstance(several[0], Mapping)
        conversations = [several] if one else several
        return self._answer([self._chat(*each) for each in _paired(conversations, sampling_params)], use_tqdm)

    def stream(
        self, prompt: TextOrIds | Sequence[ChatMessage], sampling_params: SamplingParams | None = None
    ) -> Generator[Delta]:
        """The answer to one prompt or conversation as it is written, in deltas; the last has `finish` and `usage`. To
        leave the loop early ends the request. Raises what `generate` does."""
        params = SamplingParams() if sampling_params is None else sampling_params
        if params.n != 1:
            raise InvalidValue("n", f"n: a stream has one answer, not {params.n}")
        planned = self._either(prompt, params)
        if planned.scored.needed:
            param = "logprobs" if planned.scored.candidates else "prompt_logprobs"
            what = "a choice" if planned.scored.candidates else "its prompt"
            raise InvalidValue(param, f"{param}: a stream has no probabilities of {what}: use generate or chat")
        return self._offline.stream(planned.ids, planned.choices[0])

    async def answer(
        self, prompt: TextOrIds | Sequence[ChatMessage], sampling_params: SamplingParams | None = None
    ) -> RequestOutput:
        """The answer to one prompt or conversation, for a caller with an event loop: as many as are awaited at once are
        computed together. To cancel it ends the request. Raises what `generate` does."""
        params = SamplingParams() if sampling_params is None else sampling_params
        # In a thread: to compile a grammar may take seconds, in which the loop has other things to do.
        planned = await asyncio.to_thread(self._either, prompt, params)
        return planned.output(await self._offline.gather(planned.requests))

    def _either(self, prompt: TextOrIds | Sequence[ChatMessage], params: SamplingParams) -> Planned:
        given = _listed(prompt)
        talk = isinstance(given, list) and bool(given) and isinstance(given[0], Mapping)
        return self._chat(prompt, params) if talk else self._text(prompt, params)

    def _text(self, prompt: Any, params: SamplingParams) -> Planned:
        given = prompt
        if isinstance(prompt, Mapping):
            given = next(iter(prompt.values())) if prompt.keys() in ({"prompt"}, {"prompt_token_ids"}) else None
        given = _listed(given)
        ids = isinstance(given, list) and not any(isinstance(part, str | list) for part in given)
        if not isinstance(given, str) and not ids:
            reason = 'must be a text, token ids, or an object with "prompt" or "prompt_token_ids" alone'
            raise InvalidValue("prompt", f"prompt: {reason}, not {shown(prompt)}")
        ranks = {} if params.logprobs is None else {"logprobs": params.logprobs}
        body = self._validated(CompletionRequest, {"prompt": given, **ranks}, params)
        (read,) = body.prompt
        text = self._offline.parts.text
        if isinstance(read, str):
            return self._planned(params, body, "prompt", lambda context: text.encode(read, most_tokens=context), read)
        for token in (min(read), max(read)):
            check_token(text, "prompt", token)
        if text.mask_id in read:
            raise InvalidValue("prompt", f"prompt: {text.mask_id} is the mask token, which only a canvas may contain")
        return self._planned(params, body, "prompt", lambda context: read, None)

    def _chat(self, messages: Any, params: SamplingParams) -> Planned:
        ranks = {} if params.logprobs is None else {"logprobs": True, "top_logprobs": params.logprobs}
        given = _listed(messages)
        if not isinstance(given, list) or not all(isinstance(message, Mapping) for message in given):
            reason = f"a conversation is a list of objects with 'role' and 'content', not {shown(messages)}"
            raise InvalidValue("messages", f"messages: {reason}")
        body = self._validated(ChatCompletionRequest, {"messages": list(map(dict, given)), **ranks}, params)
        read = [message.for_template() for message in body.messages]
        text = self._offline.parts.text
        return self._planned(params, body, "messages", lambda context: text.encode_chat(read, context), None)

    def _validated(self, kind: type[Request], prompt: Mapping[str, Any], params: SamplingParams) -> Request:
        try:
            return kind.model_validate({"model": "", **prompt, **params.body()})
        except ValidationError as error:
            found = from_validation(error.errors(include_url=False)[0])
            if found.param == "top_logprobs":  # of a chat
                raise InvalidValue("logprobs", str(found).removeprefix("top_")) from None
            raise found from None

    def _planned(
        self, params: SamplingParams, body: GenerationRequest, param: str, encode: Any, prompt: str | None
    ) -> Planned:
        offline = self._offline
        context, text = offline.parts.limits.max_model_len, offline.parts.text
        check_named_tokens(text, body)
        body.check_candidates()
        grammar = None if body.wanted is None else offline.grammar(body.wanted)
        candidates, chains = grammar.candidates if body.candidate_texts and grammar is not None else (), None
        try:
            ids = encode(context)
            if body.wanted is not None and body.candidate_texts and not candidates:
                param = body.wanted.param
                chains = candidate_tokens(text, body.candidate_texts, context, param)
        except TextTooLong as error:
            raise ContextLengthExceeded(context, error.least_tokens, param=param, at_least=True) from None
        planned = planned_choices(body, Prompt(param, ids), context, offline.default_max_tokens, grammar)
        choices = [replace(options, watch=params.lanes, candidates=candidates) for (options,) in planned]
        return Planned(prompt, ids, choices, body, ScoredAnswers.of(body, [ids], [0] * len(choices), chains))

    def _answer(self, planned: Sequence[Planned], use_tqdm: bool) -> list[RequestOutput]:
        requests = [request for each in planned for request in each.requests]
        with closing(tqdm(total=len(requests), unit="answer", disable=not use_tqdm)) as bar:
            answers = iter(self._offline.answer_each(requests, bar.update))
        return [each.output(list(islice(answers, len(each.requests)))) for each in planned]


def _several(prompts: Any) -> list[Any]:
    """One prompt or several as a list."""
    several = _listed(prompts)
    one = not isinstance(several, list) or (bool(several) and all(type(token) is int for token in several))
    return [several] if one else several


def _listed(value: Any) -> Any:
    """A list of what a sequence or an array has; anything else as it is."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    single = isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable)
    return value if single else list(value)


def _paired(
    prompts: Sequence[Any], params: SamplingParams | Sequence[SamplingParams] | None
) -> list[tuple[Any, SamplingParams]]:
    """Each prompt with its parameters. Raises `InvalidValue` unless there are as many."""
    if params is None or isinstance(params, SamplingParams):
        return [(prompt, params or SamplingParams()) for prompt in prompts]
    listed: Any = params
    if not isinstance(listed, Sequence) or not all(isinstance(each, SamplingParams) for each in listed):
        raise InvalidValue("sampling_params", f"sampling_params: give SamplingParams, not {shown(listed)}")
    if len(params) != len(prompts):
        reason = (
            f"there are {len(params)} sampling_params for {len(prompts)} prompts: give one for each, or one for all"
        )
        raise InvalidValue("sampling_params", reason)
    return list(zip(prompts, params, strict=True))
