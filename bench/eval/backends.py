"""Where answers come from: a model in this process, or a running server."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self

from ...clients import Answer, AsyncClient, ClientError, StatusError
from ...server.settings import OF_LLM, Settings
from .decoders import Choice, parse_decoder, split_decoder
from .tasks import Prompt

if TYPE_CHECKING:
    from ...server.engine.wiring import Checkpoint
    from ...server.llm import LLM

NOT_FOUND = 404
# The settings of a model that is loaded here on which its answers depend.
OF_ANSWERS = (
    *("lora", "drafter", "dtype", "device", "tensor_parallel_size", "load_format", "quantization", "deterministic"),
    *("block_size", "kv_cache_dtype", "controller"),
)


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer, with its tokens up to the first end token. A server of another kind counts no forwards."""

    text: str
    finish: str
    tokens: int
    forwards: int | None
    computed: int | None


@dataclass(frozen=True, slots=True)
class Options:
    """How all prompts of an evaluation are answered. A `chat` goes through the chat template."""

    chat: bool
    max_tokens: int
    stops: tuple[str, ...]
    temperature: float = 0.0

    def params(self) -> dict[str, Any]:
        stop = {"stop": [*self.stops]} if self.stops else {}
        return {"max_tokens": self.max_tokens, "temperature": self.temperature, "seed": 0, **stop}


class Backend(Protocol):
    """A context manager that loads the model, if it runs in this process; inside it, `connected` is one for the loop.

    `default` is the decoder that is measured if none is given. `has_template` None: a server does not say. `facts` are
    what answers depend on, known once it is connected.
    """

    @property
    def name(self) -> str: ...
    @property
    def default(self) -> str: ...
    @property
    def has_template(self) -> bool | None: ...
    @property
    def facts(self) -> Mapping[str, object]: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *error: object) -> None: ...
    def choice(self, text: str, max_tokens: int) -> Choice:
        """The decoder of a text. Raises `ValueError` for one that is not accepted."""

    def connected(self) -> AbstractAsyncContextManager[None]: ...
    async def answer(self, prompt: Prompt, choice: Choice, options: Options) -> Reply: ...
    async def count(self, text: str) -> int | None:
        """The tokens of a text; None if the server does not say."""


class InProcess:
    """A model that is loaded here. Its engine computes together what is awaited at once."""

    def __init__(self, settings: Settings, checkpoint: Checkpoint, default: str) -> None:
        self.default = default
        self._settings = settings
        self._checkpoint = checkpoint
        self._stack = ExitStack()
        self._llm: LLM | None = None

    @property
    def name(self) -> str:
        return self._settings.model_name

    @property
    def has_template(self) -> bool | None:
        return self._checkpoint.text.has_template

    @property
    def facts(self) -> Mapping[str, object]:
        return {name: getattr(self._settings, name) for name in ("model", *OF_ANSWERS)}

    def __enter__(self) -> Self:
        from ...server.llm import LLM  # here, because it brings torch, which a bad file does not need

        self._llm = self._stack.enter_context(LLM(**{name: getattr(self._settings, name) for name in OF_LLM}))
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def choice(self, text: str, max_tokens: int) -> Choice:
        return parse_decoder(text, max_tokens, self._checkpoint)

    @asynccontextmanager
    async def connected(self) -> AsyncGenerator[None]:
        yield

    async def answer(self, prompt: Prompt, choice: Choice, options: Options) -> Reply:
        from ...server.llm import SamplingParams

        assert self._llm is not None
        params = SamplingParams(decoder=choice.name, params=choice.params, **options.params())
        (found,) = (await self._llm.answer(prompt.messages if options.chat else prompt.text, params)).outputs
        stats, tokens = found.usage.stats, found.usage.completion_tokens
        return Reply(found.text, found.finish_reason, tokens, stats.forwards, stats.computed_tokens)

    async def count(self, text: str) -> int | None:
        return len(self._checkpoint.text.encode(text, specials=False))


class Server:
    """A server of OpenAI's API. The parameters of decoders are sent as they are: the server checks them."""

    default = "asynclane"

    def __init__(self, url: str, api_key: str | None, model: str | None) -> None:
        self._client = AsyncClient(url, api_key=api_key)
        self._model = model
        self._counts = True

    @property
    def name(self) -> str:
        return self._model or "the server's model"

    @property
    def has_template(self) -> bool | None:
        return None

    @property
    def facts(self) -> Mapping[str, object]:
        return {"model": self._model, **dict.fromkeys(OF_ANSWERS, "the server's")}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """All is closed once it is no longer connected."""

    def choice(self, text: str, max_tokens: int) -> Choice:
        return split_decoder(text)

    @asynccontextmanager
    async def connected(self) -> AsyncGenerator[None]:
        """Raises `ClientError`, also for a model that the server does not have."""
        async with self._client:
            served = [each.id for each in await self._client.models()]
            if self._model is not None and self._model not in served:
                raise ClientError(f"the server has no model {self._model!r}: it serves {', '.join(map(repr, served))}")
            self._model = self._model or served[0]
            yield

    async def answer(self, prompt: Prompt, choice: Choice, options: Options) -> Reply:
        extra = {"decoder": choice.name, **choice.params, **options.params()}
        model = self.name
        if options.chat:
            messages: Any = prompt.messages
            return _reply(await self._client.chat(messages, model=model, extra=extra))
        return _reply(await self._client.complete(prompt.text, model=model, extra=extra))

    async def count(self, text: str) -> int | None:
        if not self._counts or not text:
            return 0 if self._counts else None
        try:
            return (await self._client.tokenize(text, model=self.name, add_special_tokens=False)).count
        except StatusError as error:
            if error.status != NOT_FOUND:
                raise
            self._counts = False  # a server of another kind
            return None


def _reply(answer: Answer) -> Reply:
    usage, choice = answer.usage, answer.choices[0]
    cost = usage.cost if usage else None
    return Reply(
        choice.text,
        choice.finish_reason or "",
        usage.completion_tokens if usage else 0,
        cost.forwards if cost else None,
        cost.computed_tokens if cost else None,
    )
