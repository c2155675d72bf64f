"""`POST /tokenize` and `/detokenize`, and `GET /tokenizer_info`, in vLLM's shapes."""

from __future__ import annotations

from typing import Annotated, Self

from fastapi import APIRouter, Request
from pydantic import Field, model_validator
from starlette.responses import JSONResponse, Response

from ..errors import InvalidValue
from ..http.body import Body, JsonRoute, refused
from ..schema.openapi import REFUSALS, UNAUTHORIZED, Detokenized, Tokenized, TokenizerInfo
from ..schema.requests import Messages, ModelName, check_ending
from ..text.tokenizer import Tokenizer
from .generation import PER_TEXT, Backend, check_token


class TextToTokens(Body):
    """A text as `/v1/completions` reads it, or a conversation as `/v1/chat/completions` does."""

    model: ModelName | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None
    return_token_strs: bool | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise refused("prompt", "give either prompt or messages")
        if self.messages is not None:
            check_ending(self.messages, self.continue_final_message, self.add_generation_prompt)
            if self.add_special_tokens:
                raise refused("add_special_tokens", "not together with messages: the chat template adds special tokens")
        for name in ("continue_final_message", "add_generation_prompt"):
            if self.messages is None and getattr(self, name) is not None:
                raise refused(name, "only with messages")
        return self

    @property
    def chars(self) -> int:
        return len(self.prompt or "") + sum(
            len(part.text) + PER_TEXT for one in self.messages or () for part in one.content
        )

    def ids(self, tokenizer: Tokenizer, context: int) -> list[int]:
        """Raises `TextTooLong`."""
        if self.messages is not None:
            return tokenizer.encode_chat([message.for_template() for message in self.messages], context)
        specials = self.add_special_tokens is not False
        return tokenizer.encode(self.prompt or "", specials=specials, most_tokens=context)


class TokensToText(Body):
    tokens: Annotated[list[Annotated[int, Field(ge=0)]], Field(fail_fast=True)]
    model: ModelName | None = None


def token_routes(backend: Backend) -> APIRouter:
    router = APIRouter(tags=["tokens"], responses=REFUSALS, route_class=JsonRoute)
    tokenizer, card = backend.tokenizer, backend.card

    @router.post("/tokenize", response_model=Tokenized)
    async def tokenize(body: TextToTokens, request: Request) -> Response:
        card.check_name(body.model or card.id)

        def read() -> Response:
            ids = body.ids(tokenizer, card.max_model_len)
            strings = tokenizer.token_strings(ids) if body.return_token_strs else None
            found = {"count": len(ids), "max_model_len": card.max_model_len, "tokens": ids, "token_strs": strings}
            return JSONResponse(found)

        return await backend.encode(request, "prompt" if body.messages is None else "messages", body.chars, read)

    @router.post("/detokenize", response_model=Detokenized)
    async def detokenize(body: TokensToText, request: Request) -> dict[str, str]:
        """Special tokens come as they are spelt."""
        card.check_name(body.model or card.id)
        if len(body.tokens) > card.max_model_len:
            reason = f"tokens: {len(body.tokens)} are more than the context, {card.max_model_len}"
            raise InvalidValue("tokens", reason, code="context_length_exceeded")
        size = tokenizer.vocab_size
        at = next((at for at, token in enumerate(body.tokens) if token >= size), None)
        if at is not None:
            check_token(tokenizer, f"tokens.{at}", body.tokens[at])
        tokens = body.tokens
        text = await backend.encode(request, "tokens", len(tokens), lambda: tokenizer.decode(tokens, specials=True))
        return {"prompt": text}

    both = APIRouter(tags=["tokens"], responses=UNAUTHORIZED)
    both.include_router(router)

    @both.get("/tokenizer_info", response_model=TokenizerInfo)
    async def tokenizer_info() -> dict[str, object]:
        """The special tokens and the chat template, as evaluation tools read them."""
        return {**tokenizer.info(), "max_model_len": card.max_model_len}

    return both
