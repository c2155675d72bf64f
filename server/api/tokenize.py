"""`POST /tokenize` and `/detokenize`, and `GET /tokenizer_info`, in vLLM's shapes."""

from __future__ import annotations

from typing import Annotated, Self

from fastapi import APIRouter, Request
from pydantic import Field, model_validator
from starlette.responses import JSONResponse, Response

from ..errors import InvalidValue
from ..http.body import Body, JsonRoute, refused
from ..schema.chat_request import Messages, TemplateVariables, check_ending, check_messages, check_names
from ..schema.openapi import REFUSALS, UNAUTHORIZED, Detokenized, Tokenized, TokenizerInfo
from ..schema.requests import ModelName
from ..schema.tools import Tools
from ..text.answer_formats import NO_TOOLS
from .chat import Conversation
from .generation import Backend, check_token


class TextToTokens(Body):
    """A text as `/v1/completions` reads it, or a conversation as `/v1/chat/completions` does."""

    model: ModelName | None = None
    prompt: str | None = None
    messages: Messages | None = None
    tools: Tools | None = None
    chat_template_kwargs: TemplateVariables | None = None
    add_special_tokens: bool | None = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None
    return_token_strs: bool | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise refused("prompt", "give either prompt or messages")
        if self.messages is not None:
            check_messages(self.messages)
            check_names(self.tools or [])
            check_ending(self.messages, self.continue_final_message, self.add_generation_prompt)
        for name in ("tools", "chat_template_kwargs", "continue_final_message", "add_generation_prompt"):
            if self.messages is None and getattr(self, name) not in (None, [], {}):
                raise refused(name, "only with messages")
        return self


class TokensToText(Body):
    tokens: Annotated[list[Annotated[int, Field(ge=0)]], Field(fail_fast=True)]
    model: ModelName | None = None


def token_routes(backend: Backend) -> APIRouter:
    router = APIRouter(tags=["tokens"], responses=REFUSALS, route_class=JsonRoute)
    tokenizer, card = backend.tokenizer, backend.card

    @router.post("/tokenize", response_model=Tokenized)
    async def tokenize(body: TextToTokens, request: Request) -> Response:
        card.named(body.model)
        talk = None
        if body.messages is not None:
            if body.tools and tokenizer.template is not None and not tokenizer.template.shows_tools:
                raise InvalidValue("tools", f"tools: {NO_TOOLS}", code="unsupported_parameter")
            talk = Conversation(tokenizer, body.messages, body.tools or [], body.chat_template_kwargs or {})

        def read() -> Response:
            if talk is not None:
                ids = talk.ids(card.max_model_len, bool(body.add_special_tokens))
            else:
                specials = body.add_special_tokens is not False
                ids = tokenizer.encode(body.prompt or "", specials=specials, most_tokens=card.max_model_len)
            strings = tokenizer.token_strings(ids) if body.return_token_strs else None
            found = {"count": len(ids), "max_model_len": card.max_model_len, "tokens": ids, "token_strs": strings}
            return JSONResponse(found)

        param, chars = ("prompt", len(body.prompt or "")) if talk is None else ("messages", talk.chars)
        return await backend.encode(request, param, chars, read)

    @router.post("/detokenize", response_model=Detokenized)
    async def detokenize(body: TokensToText, request: Request) -> dict[str, str]:
        """Special tokens come as they are spelt."""
        card.named(body.model)
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
