"""`POST /tokenize` and `/detokenize`, in vLLM's shapes."""

from __future__ import annotations

from typing import Annotated, Any, Self

from fastapi import APIRouter
from pydantic import Field, model_validator

from ..http.body import Body, JsonRoute, refused
from ..schema.openapi import REFUSALS, Detokenized, Tokenized
from ..schema.requests import Messages, check_ending
from ..schema.responses import ModelCard
from ..text.tokenizer import Tokenizer
from .generation import check_token, off_loop_if_long


class TextToTokens(Body):
    """A text as `/v1/completions` reads it, or a conversation as `/v1/chat/completions` does."""

    model: str | None = None
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
        return len(self.prompt or "") + sum(len(part.text) for one in self.messages or () for part in one.content)

    def ids(self, tokenizer: Tokenizer) -> list[int]:
        if self.messages is not None:
            return tokenizer.encode_chat([message.for_template() for message in self.messages])
        return tokenizer.encode(self.prompt or "", specials=self.add_special_tokens is not False)


class TokensToText(Body):
    tokens: list[Annotated[int, Field(ge=0)]]
    model: str | None = None


def token_routes(tokenizer: Tokenizer, card: ModelCard) -> APIRouter:
    router = APIRouter(tags=["tokens"], responses=REFUSALS, route_class=JsonRoute)

    @router.post("/tokenize", response_model=Tokenized)
    async def tokenize(body: TextToTokens) -> dict[str, Any]:
        card.check_name(body.model or card.id)
        ids = await off_loop_if_long(body.chars, lambda: body.ids(tokenizer))
        strings = None
        if body.return_token_strs:
            strings = await off_loop_if_long(len(ids), lambda: tokenizer.token_strings(ids))
        return {"count": len(ids), "max_model_len": card.max_model_len, "tokens": ids, "token_strs": strings}

    @router.post("/detokenize", response_model=Detokenized)
    async def detokenize(body: TokensToText) -> dict[str, str]:
        """Special tokens come as they are spelt."""
        card.check_name(body.model or card.id)
        size = tokenizer.vocab_size
        at = next((at for at, token in enumerate(body.tokens) if token >= size), None)
        if at is not None:
            check_token(tokenizer, f"tokens.{at}", body.tokens[at])
        text = await off_loop_if_long(len(body.tokens), lambda: tokenizer.decode(body.tokens, specials=True))
        return {"prompt": text}

    return router
