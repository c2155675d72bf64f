"""The requests of both clients: every parameter with its name and type, and the body that is sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, NotRequired, TypedDict, TypeVar
from urllib.parse import quote

import httpx

from .types import Answer, Message, Model, ModelList, Reply, Text, Tokens

T_co = TypeVar("T_co", bound=Reply, covariant=True)

Extra = Mapping[str, Any] | None
Prompt = str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]] | None  # None: `template` is given


Messages = Sequence[Message]


class Function(TypedDict):
    """A function that a model may call. `parameters` is a JSON schema, which the arguments of each call follow if it is
    `strict`."""

    name: str
    description: NotRequired[str]
    parameters: NotRequired[Mapping[str, Any]]
    strict: NotRequired[bool]


class Tool(TypedDict):
    type: Literal["function"]
    function: Function


class FunctionName(TypedDict):
    name: str


class NamedTool(TypedDict):
    """A tool that must be called."""

    type: Literal["function"]
    function: FunctionName


ToolChoice = Literal["none", "auto", "required"] | NamedTool


class DecoderParams(TypedDict, total=False):
    """Parameters of the decoders `asynclane`, `fast-dllm`, `llada` and `dream`. `Model.decoders` has those of every
    decoder, with their defaults; `extra` sends the others."""

    decoder: str
    steps: int
    threshold: float
    factor: float
    entropy_bound: float
    rule: str
    alg: str
    alg_temp: float
    eps: float
    block_length: int | str
    cache: str
    lookahead: int | str
    draft_threshold: float | str
    end_threshold: float | str
    stop_threshold: float | str
    later_threshold: float | str
    max_lanes: int
    min_fill: float
    min_steps: int
    boundary: str
    stable_steps: int
    siblings: str
    refresh_every: int
    refresh_on: str
    reuse: bool
    settle: bool
    early_stop: bool | str


class CommonParams(DecoderParams, total=False):
    """OpenAI's parameters of both endpoints, and the usual extensions. A server refuses those it does not know."""

    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int
    n: int
    stop: str | Sequence[str]
    include_stop_str_in_output: bool
    stop_token_ids: Sequence[int]
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    logit_bias: Mapping[str, float]
    min_tokens: int
    ignore_eos: bool
    response_format: Mapping[str, Any]
    structured_outputs: Mapping[str, Any]
    guided_json: Mapping[str, Any] | str
    guided_regex: str
    guided_choice: Sequence[str]
    prompt_logprobs: int
    bad_words: Sequence[str]
    allowed_token_ids: Sequence[int]
    diffusing: bool
    cache_salt: str
    timeout: float
    user: str
    metadata: Mapping[str, str]
    store: bool
    prompt_cache_key: str
    prompt_cache_retention: str
    safety_identifier: str
    verbosity: str


class ChatParams(CommonParams, total=False):
    max_completion_tokens: int
    logprobs: bool
    top_logprobs: int
    continue_final_message: bool
    add_generation_prompt: bool
    tools: Sequence[Tool]
    tool_choice: ToolChoice
    parallel_tool_calls: bool
    chat_template_kwargs: Mapping[str, Any]
    add_special_tokens: bool
    reasoning_effort: str


class TextParams(CommonParams, total=False):
    template: Sequence[str | Mapping[str, int]]
    suffix: str
    add_special_tokens: bool
    echo: bool
    best_of: int
    logprobs: int
    likelihood: str
    likelihood_samples: int
    likelihood_start: int


class TokenizeParams(TypedDict, total=False):
    """`add_generation_prompt` and `continue_final_message` are for messages only."""

    add_special_tokens: bool
    add_generation_prompt: bool
    continue_final_message: bool
    return_token_strs: bool


@dataclass(frozen=True, slots=True)
class Call(Generic[T_co]):
    """One request, and the type of its reply."""

    method: str
    path: str
    returns: type[T_co]
    body: dict[str, Any] | None = None

    def request(self, http: httpx.Client | httpx.AsyncClient) -> httpx.Request:
        """Raises `ValueError` for a body that is not JSON: NaN, half a surrogate pair, other objects."""
        try:
            return http.build_request(self.method, self.path, json=self.body)
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"this cannot be sent as JSON: {error}") from None


def chat(model: str, messages: Messages, options: Mapping[str, object], extra: Extra) -> Call[Answer]:
    body = {"model": model, "messages": list(messages), **options, **(extra or {})}
    return Call("POST", "/v1/chat/completions", Answer, body)


def complete(model: str, prompt: Prompt, options: Mapping[str, object], extra: Extra) -> Call[Answer]:
    return Call("POST", "/v1/completions", Answer, {"model": model, "prompt": prompt, **options, **(extra or {})})


def streamed(call: Call[Answer], lanes: bool) -> Call[Answer]:
    """Return the same call as a stream with usage. The caller's own `stream_options` take precedence; the server
    refuses those that are invalid."""
    options = {"include_usage": True, **({"include_lanes": True} if lanes else {})}
    given = call.body or {}
    own = given.get("stream_options") or {}
    body = {**given, "stream": True, "stream_options": {**options, **own} if isinstance(own, Mapping) else own}
    return Call(call.method, call.path, call.returns, body)


MODELS: Call[ModelList] = Call("GET", "/v1/models", ModelList)


def model(name: str) -> Call[Model]:
    # Dots are quoted, too: a URL would resolve a name such as `..`.
    return Call("GET", f"/v1/models/{quote(name, safe='').replace('.', '%2E')}", Model)


def tokenize(name: str, text: str | Messages, options: TokenizeParams) -> Call[Tokens]:
    content: dict[str, Any] = {"prompt": text} if isinstance(text, str) else {"messages": list(text)}
    return Call("POST", "/tokenize", Tokens, {"model": name, **content, **options})


def detokenize(name: str, tokens: Sequence[int]) -> Call[Text]:
    return Call("POST", "/detokenize", Text, {"model": name, "tokens": list(tokens)})
