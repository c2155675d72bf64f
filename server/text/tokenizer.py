"""A checkpoint's tokenizer, chat template and special tokens. No token id is written in code."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...scheduler import Vocabulary
from ..errors import EngineFailure, InvalidValue
from .chat_template import NONE, ChatMessage, ChatTemplate, TemplateFailure, TemplateRefusal, Tool
from .literals import MARK_CHARS, Literals, new_mark

if TYPE_CHECKING:
    import tokenizers

NO_TEMPLATE = "this model has no chat template: use /v1/completions, or --raw in a terminal"

# Tokenizers for which vocab.json and merges.txt are enough. Dream's is Qwen2's under its own name.
QWEN = ("Qwen2Tokenizer", "Qwen2TokenizerFast", "DreamTokenizer")
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
LARGE = 10**6  # of a number that a chat template may take for a width
BYTE = re.compile(r"<0x([0-9A-F]{2})>")  # a byte without a token of its own, in a vocabulary of SentencePiece
# Steps of decoding with which a token has the same text alone and between others, except at the start of a text.
DECODERS = ("ByteLevel", "ByteFallback", "Fuse", "Metaspace", "Replace", "Strip")


def _letters_of_bytes() -> dict[str, int]:
    """The byte of each letter in a byte-level vocabulary: a byte is spelt by its Latin-1 character, or by one from 256
    on if that is not visible (Radford et al., 2019)."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(256 + at): byte for at, byte in enumerate(hidden)}


BYTES_OF_LETTERS = _letters_of_bytes()
KEEPING = ("ByteLevel", "Digits", "Punctuation", "Split")  # kinds of pre-tokenizers that drop no character
NFC_CHARS = 4  # that NFC composes to one, at most


def _steps(part: Any) -> list[dict[str, Any]]:
    """The steps of a normalizer or a pre-tokenizer, as tokenizer.json describes them."""
    if part is None:
        return []
    state = json.loads(part.__getstate__())
    return state.get("pretokenizers") or state.get("normalizers") or [state]


class BadTokenizer(ValueError):
    """A checkpoint's tokenizer is missing something; the message is one line."""


class TextTooLong(ValueError):
    """A text of at least `least_tokens`, which is more than there may be."""

    def __init__(self, least_tokens: int) -> None:
        super().__init__(f"the text has at least {least_tokens} tokens")
        self.least_tokens = least_tokens


class Tokenizer:
    """The tokenizer in `model_dir`, whose mask is `mask_id` if no file there names one. Raises `BadTokenizer` for a
    missing part, and whatever the libraries raise for a broken file."""

    def __init__(self, model_dir: Path, mask_id: int | None = None) -> None:
        # Imported here, since transformers takes a second. Not AutoTokenizer: it imports torch and looks for model
        # classes, and tokenizer.json has everything.
        from transformers import PreTrainedTokenizerFast

        self._dir = model_dir
        self._config = _flat(self._read("config.json"))
        self._usual_mask = mask_id
        kind: type[PreTrainedTokenizerFast] = PreTrainedTokenizerFast
        if not (model_dir / "tokenizer.json").is_file():
            self._require_qwen()
            from transformers import Qwen2Tokenizer

            kind = Qwen2Tokenizer
        self._tokenizer = kind.from_pretrained(model_dir, local_files_only=True)
        # The Rust tokenizer is used directly: transformers' wrapper sets truncation on every call, which is not safe
        # in two threads.
        self.backend: tokenizers.Tokenizer = self._tokenizer.backend_tokenizer
        self.backend.no_truncation()
        self.backend.no_padding()
        self._drops_space = self._keep_spaces()
        self._template = self._chat_template()

    @property
    def vocab_size(self) -> int:
        """Ids below it have a token. The network may have a few more, which are empty in `pieces`."""
        return len(self._tokenizer)

    @cached_property
    def max_model_len(self) -> int:
        for key in ("max_sequence_length", "max_position_embeddings"):
            if isinstance(self._config.get(key), int):
                return int(self._config[key])
        raise BadTokenizer(f"{self._dir / 'config.json'} has no max_sequence_length or max_position_embeddings")

    @cached_property
    def mask_id(self) -> int:
        found = {self._config.get("mask_token_id"), self._tokenizer.mask_token_id} - {None}
        if len(found) > 1:
            raise BadTokenizer(f"{self._dir}: config.json and tokenizer_config.json name different masks, {found}")
        if not found and self._config.get("canvas_length") is not None:  # its canvases begin with random tokens
            found = {self._config.get("pad_token_id") or 0}
        for token in found:
            if isinstance(token, int):
                return token
        if self._usual_mask is not None:
            return self._usual_mask
        raise BadTokenizer(f"{self._dir} names no mask token, neither in config.json nor in tokenizer_config.json")

    def lacks(self, other: Tokenizer) -> tuple[int, str] | None:
        """The first token of another tokenizer that does not have the same id here, and how it is spelt; None: all
        have."""
        own, tokens = self.backend.get_vocab(with_added_tokens=True), other.backend.get_vocab(with_added_tokens=True)
        return min(((token, spelt) for spelt, token in tokens.items() if own.get(spelt) != token), default=None)

    @property
    def template(self) -> ChatTemplate | None:
        return self._template

    @property
    def has_template(self) -> bool:
        return self._template is not None

    @cached_property
    def other_templates(self) -> list[str]:
        """Names of chat templates none of which is the default, so that no chat can be rendered."""
        named = self._tokenizer.chat_template
        return sorted(named) if isinstance(named, dict) and "default" not in named else []

    @property
    def no_chat(self) -> str:
        """The reason why a chat is refused; empty if it is not."""
        if self.other_templates:
            names = ", ".join(self.other_templates)
            return f"none of this model's chat templates ({names}) is called default: use /v1/completions"
        return "" if self.has_template else NO_TEMPLATE

    def info(self) -> dict[str, str | int | None]:
        """The special tokens, the default chat template as its author wrote it, and the size of the vocabulary."""
        source = self._tokenizer.chat_template
        special = {name: getattr(self._tokenizer, name) for name in ("bos_token", "eos_token", "pad_token")}
        template = source.get("default") if isinstance(source, dict) else source
        return {**special, "chat_template": template, "vocab_size": self.vocab_size}

    def tokens_of(self, texts: Iterable[str]) -> dict[str, int]:
        """The ids of those texts that are added tokens, special ones or not."""
        added = {entry.content: token for token, entry in self.backend.get_added_tokens_decoder().items()}
        return {text: added[text] for text in texts if text in added}

    @cached_property
    def special_ids(self) -> frozenset[int]:
        added = self.backend.get_added_tokens_decoder()
        return frozenset(token for token, entry in added.items() if entry.special)

    @cached_property
    def end_ids(self) -> frozenset[int]:
        """Ids that end an answer: every end of text in the checkpoint's files, and the end of turn."""
        found: list[Any] = []
        for source in (self._config, self._read("generation_config.json")):
            named = source.get("eos_token_id")
            found += (token for token in (named if isinstance(named, list) else [named]) if token is not None)
        found += (token for token in (self._tokenizer.eos_token_id, self._end_of_turn()) if token is not None)
        if not found:
            raise BadTokenizer(f"{self._dir} names no token that ends an answer")
        if any(type(token) is not int for token in found):
            raise BadTokenizer(f"{self._dir}: eos_token_id is no id, or a list with something else: {found}")
        return frozenset(found)

    @cached_property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary(self.pieces, self.mask_id, self.end_ids, self._controls(), self._counts())

    def _counts(self) -> list[int]:
        """How often each token comes in texts of the model's kind, if the folder says so."""
        path = self._dir / "token_frequencies.json"
        counts = self._json(path) if path.is_file() else []
        valid = isinstance(counts, list) and all(type(count) is int and count >= 0 for count in counts)
        if not valid or (counts and len(counts) != len(self.pieces)) or (path.is_file() and not any(counts)):
            raise BadTokenizer(f"{path} must be a list of counts, one for each of {len(self.pieces)} token ids")
        return counts

    def _controls(self) -> tuple[int, int] | None:
        """LLaDA2.2's tokens that delete and insert."""
        delete, split = self._config.get("delete_token_id"), self._config.get("split_token_id")
        return (delete, split) if isinstance(delete, int) and isinstance(split, int) else None

    @cached_property
    def pieces(self) -> list[str]:
        """The text of every id of the network; empty for special tokens and for ids without a token."""
        size = self._config.get("embedding_size") or self._config.get("vocab_size")
        ids = [[token] for token in range(max(self.vocab_size, size if isinstance(size, int) else 0))]
        return self.backend.decode_batch(ids, skip_special_tokens=True)

    @cached_property
    def _longest_token(self) -> int | None:
        """The most characters of a text that one token takes; None if there is no such number, as for tokenizers that
        drop spaces or join unknown characters."""
        spelt = self.backend.get_vocab(with_added_tokens=True)
        added = self.backend.get_added_tokens_decoder().values()
        if not spelt.keys() >= BYTES_OF_LETTERS.keys() or any(token.lstrip or token.rstrip for token in added):
            return None
        splits, composes = _steps(self.backend.pre_tokenizer), _steps(self.backend.normalizer)
        if not all(step["type"] in KEEPING and step.get("behavior") != "Removed" for step in splits):
            return None
        if not any(step["type"] == "ByteLevel" for step in splits) or any(step["type"] != "NFC" for step in composes):
            return None
        return max(map(len, spelt)) * (NFC_CHARS if composes else 1)

    def prepare(self) -> None:
        """Build now what the first request would wait for."""
        _ = self.literals, self._longest_token
        if self._template is not None:
            _ = self._template.variables, self._template.shows_tools, self._template.shows_calls

    @cached_property
    def literals(self) -> Literals:
        """The reader of text in which clients spell special tokens."""
        return Literals(self.backend, self.special_ids | self.end_ids, self.mask_id)

    def encode(
        self, text: str, *, specials: bool = True, most_tokens: int | None = None, plain: bool = False
    ) -> list[int]:
        """The ids of a client's text, special tokens included, but for the mask, which is read as text; in a `plain`
        text all are. Without `specials`, none is added, whatever the tokenizer's own default. Raises `TextTooLong`,
        before it takes time, for a text that must have more than `most_tokens`."""
        mark = new_mark()
        return self._encode(self.literals.hide(text, mark, only_mask=not plain), mark, specials, most_tokens)

    def _encode(self, text: str, mark: str, specials: bool, most_tokens: int | None) -> list[int]:
        if most_tokens is not None and self._longest_token is not None:
            chars = len(text) - text.count(mark) * MARK_CHARS  # at least
            least_tokens = -(-chars // self._longest_token)
            if least_tokens > most_tokens:
                raise TextTooLong(least_tokens)
        return self.literals.encode(text, mark, specials=specials)

    def encode_chat(
        self,
        messages: Sequence[ChatMessage],
        most_tokens: int | None = None,
        tools: Sequence[Tool] | None = None,
        variables: Mapping[str, Any] = NONE,
        specials: bool = False,
    ) -> list[int]:
        """The prompt of a chat. The answer follows the last message, or continues it if it is an assistant's. Special
        tokens that messages, tools and the template's `variables` spell are text. With `specials` the tokenizer adds
        its own to the template's. Raises `InvalidValue` for what the checkpoint's template does not accept,
        `EngineFailure` if it fails, and `TextTooLong`."""
        if self._template is None:
            raise InvalidValue("messages", self.no_chat)
        mark = new_mark()
        messages = [
            {name: text if name == "role" else self._hidden(text, mark) for name, text in message.items()}
            for message in messages
        ]
        given = {"tools": self._hidden(tools, mark), "variables": self._hidden(variables, mark)}
        last = messages[-1]
        try:
            if last["role"] != "assistant":
                return self._encode(self._template.render(messages, opened=True, **given), mark, specials, most_tokens)
            # Its text replaces a marker: templates trim the content of messages, and close the turn after it.
            around = self._template.around_last(messages, **given)
        except TemplateRefusal as error:
            raise InvalidValue("messages", f"the model's chat template refuses them: {error}") from None
        except TemplateFailure as error:
            if param := _beyond_text(messages, tools, variables):
                raise InvalidValue(param, f"{param}: {error}") from None
            raise EngineFailure(f"this model cannot chat about these messages: {error}") from None
        if around is None:
            raise InvalidValue("messages", "the model's chat template does not say where an assistant's answer starts")
        return self._encode(around[0] + last["content"], mark, specials, most_tokens)

    def _hidden(self, value: Any, mark: str) -> Any:
        """A value of a client with its special tokens hidden in all texts."""
        if isinstance(value, str):
            return self.literals.hide(value, mark)
        if isinstance(value, Mapping):
            return {self.literals.hide(name, mark): self._hidden(inner, mark) for name, inner in value.items()}
        return [self._hidden(inner, mark) for inner in value] if isinstance(value, list | tuple) else value

    def decode(self, ids: Sequence[int], *, specials: bool = False) -> str:
        """The whole text of a prompt. With `specials`, special tokens are spelt out; otherwise they have no text."""
        text = self.backend.decode_batch([list(ids)], skip_special_tokens=not specials)[0]
        return text.removeprefix(" ") if self._drops_space else text

    def token_strings(self, ids: Sequence[int]) -> list[str]:
        """Each token as the tokenizer's own vocabulary spells it."""
        return [self.backend.id_to_token(token) or "" for token in ids]

    def token_bytes(self, token: int) -> bytes:
        """A token's own bytes, even if they are a part of a character. Special tokens have none."""
        piece = self.pieces[token]
        spelt = self.backend.id_to_token(token) or ""
        if REPLACEMENT in piece and (byte := BYTE.fullmatch(spelt)):
            return bytes.fromhex(byte[1])
        if REPLACEMENT in piece and all(letter in BYTES_OF_LETTERS for letter in spelt):
            return bytes(BYTES_OF_LETTERS[letter] for letter in spelt)
        return piece.encode()

    def _keep_spaces(self) -> bool:
        """Make a token's text the same everywhere. SentencePiece's decoders drop the space at the start of a text, and
        of a token that is decoded alone. Returns True if they did. Raises `BadTokenizer` for unknown decoders."""
        decoder = self.backend.decoder
        described: dict[str, Any] = {"type": None} if decoder is None else json.loads(decoder.__getstate__())
        steps: list[dict[str, Any]] = described["decoders"] if described["type"] == "Sequence" else [described]
        for step in steps:
            if step["type"] not in DECODERS:
                kinds = ", ".join(DECODERS)
                raise BadTokenizer(f"{self._dir}: the tokenizer's decoder is {step['type']}, only {kinds} can be read")
        if any(step["type"] == "ByteLevel" for step in steps):
            return False
        kept = [
            {"type": "Replace", "pattern": {"String": step["replacement"]}, "content": " "}
            if step["type"] == "Metaspace"
            else step
            for step in steps
            if step["type"] not in ("Strip", "Fuse", "ByteFallback")
        ]
        # Grammars need to see that bytes are read, even where no token is one.
        decoder.__setstate__(json.dumps({"type": "Sequence", "decoders": [*kept, {"type": "ByteFallback"}]}).encode())
        self.backend.decoder = decoder
        return any(step["type"] == "Strip" or step.get("prepend_scheme", "never") != "never" for step in steps)

    def _chat_template(self) -> ChatTemplate | None:
        source = self._tokenizer.chat_template
        if isinstance(source, dict):
            source = source.get("default")
        if source is None:
            return None
        try:
            return ChatTemplate(source, self._tokenizer.special_tokens_map)
        except TemplateFailure as error:
            raise BadTokenizer(f"{self._dir}: {error}") from None

    def _end_of_turn(self) -> int | None:
        """The first special token that the chat template puts after an assistant's answer."""
        if self._template is None:
            return None
        try:
            around = self._template.around_last([{"role": role, "content": "."} for role in ("user", "assistant")])
        except TemplateRefusal:
            return None
        except TemplateFailure as error:
            raise BadTokenizer(f"{self._dir}: {error}") from None
        ids = self.backend.encode(around[1], add_special_tokens=False).ids if around else []
        return next((token for token in ids if token in self.special_ids), None)

    def _require_qwen(self) -> None:
        """Raises `BadTokenizer` unless the files are those of Qwen2's tokenizer, which some checkpoints ship."""
        if any(not (self._dir / name).is_file() for name in ("vocab.json", "merges.txt")):
            raise BadTokenizer(
                f"{self._dir} has no tokenizer.json, and no vocab.json with merges.txt: download them too"
            )
        named = self._read("tokenizer_config.json").get("tokenizer_class")
        if named not in QWEN:
            raise BadTokenizer(
                f"{self._dir} has no tokenizer.json, and its tokenizer is {named!r}: without it, only {', '.join(QWEN)}"
                " can be read"
            )

    def _read(self, name: str) -> dict[str, Any]:
        path = self._dir / name
        content = self._json(path) if path.is_file() else {}
        return content if isinstance(content, dict) else {}

    @staticmethod
    def _json(path: Path) -> Any:
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            raise BadTokenizer(f"{path} is not JSON: {error}") from None


def _flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration with that of its text part, where that is a part of a larger network."""
    text = config.get("text_config")
    return {**text, **config} if isinstance(text, Mapping) else dict(config)


def _beyond_text(messages: Sequence[ChatMessage], tools: Sequence[Tool] | None, variables: Mapping[str, Any]) -> str:
    """The parameter of a chat that has more than texts, which few templates are ready for; empty if none has. The
    largest number is named, if there is one that can be too large."""
    places: dict[str, Any] = {"chat_template_kwargs": variables}
    places |= {f"tools.{at}": tool for at, tool in enumerate(tools or ())}
    places |= {f"messages.{at}": message for at, message in enumerate(messages)}
    largest, param = max((_largest(value), param) for param, value in places.items())
    if largest >= LARGE:
        return param
    if variables:
        return "chat_template_kwargs"
    if tools:
        return "tools"
    return "messages" if any(message.keys() - {"role", "content", "name"} for message in messages) else ""


def _largest(value: Any) -> int:
    """The largest whole number within a value, without its sign."""
    if isinstance(value, Mapping | list | tuple):
        return max(map(_largest, value.values() if isinstance(value, Mapping) else value), default=0)
    return abs(value) if isinstance(value, int) else 0
