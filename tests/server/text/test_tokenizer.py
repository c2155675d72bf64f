"""Everything special about a checkpoint is read from it, or its lack is said."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asynclane.server.errors import EngineFailure, InvalidValue
from asynclane.server.structured.grammar import Grammars, Wanted
from asynclane.server.text.detokenizer import AnswerText
from asynclane.server.text.tokenizer import BadTokenizer, TextTooLong, Tokenizer

from ...support.checkpoints import write_checkpoint, write_sentencepiece_tokenizer
from ...support.http import TINY
from ...support.scale import ALL

Edit = Callable[..., Path]


@pytest.fixture
def edited(tmp_path: Path) -> Edit:
    """A copy of the embedded model's text files, with fields of one changed; None removes a field."""

    def edit(name: str, **fields: Any) -> Path:
        for file in TINY.glob("*.json"):
            if "index" not in file.name and not (tmp_path / file.name).exists():
                shutil.copy(file, tmp_path)
        content = json.loads((tmp_path / name).read_text())
        merged = {key: value for key, value in {**content, **fields}.items() if value is not None}
        (tmp_path / name).write_text(json.dumps(merged))
        return tmp_path

    return edit


def test_the_embedded_model_is_read(text: Tokenizer) -> None:
    assert (text.mask_id, text.max_model_len, text.vocab_size) == (5, 1024, 1405)
    assert text.end_ids == {1, 4}, "end of text, and the end of turn that only the chat template knows"
    assert text.special_ids == {0, 1, 2, 3, 4, 5}


def test_pieces_cover_the_network_and_special_tokens_have_none(text: Tokenizer) -> None:
    assert len(text.pieces) == 1408, "the network has three ids more than the tokenizer"
    assert [text.pieces[token] for token in sorted(text.special_ids)] == [""] * 6
    assert text.pieces[1405:] == [""] * 3
    assert text.pieces[text.encode(".")[0]] == "."


TEXTS = st.text(max_size=300) | st.sampled_from(["<|start_header_id|>" * 20, " " * 500, "e\u0301" * 99])


@settings(max_examples=200 if ALL else 25, deadline=None)
@given(said=TEXTS)
def test_a_text_that_fits_is_never_refused_unread(said: str) -> None:
    text = Tokenizer(TINY)
    ids = text.encode(said, specials=False)
    assert text.encode(said, specials=False, most_tokens=len(ids)) == ids


def test_a_text_that_cannot_fit_is_not_encoded(text: Tokenizer) -> None:
    with pytest.raises(TextTooLong) as caught:
        text.encode("a" * 10_000_000, most_tokens=256)
    assert 256 < caught.value.least_tokens <= 10_000_000
    chat = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "a" * 10_000}]
    for messages in (chat[:1] * 300, chat, chat[1:] + chat[:1]):
        with pytest.raises(TextTooLong):
            text.encode_chat(messages, 256)
    assert text.encode_chat([{"role": "user", "content": "Hi" + " " * 100_000}], 256), "the template trims it"


@pytest.mark.parametrize(
    ("part", "changed"),
    [
        ("pre_tokenizer", {"type": "Whitespace"}),
        ("pre_tokenizer", {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}]}),
        ("normalizer", {"type": "Strip", "strip_left": True, "strip_right": True}),
        ("normalizer", {"type": "Replace", "pattern": {"String": "aaaa"}, "content": "a"}),
        ("added_tokens_decoder", {"lstrip": True}),
        ("model", {"vocab": {"a": 6}}),
    ],
)
def test_a_tokenizer_that_drops_characters_bounds_no_text(edited: Edit, part: str, changed: Any) -> None:
    file = "tokenizer_config.json" if part == "added_tokens_decoder" else "tokenizer.json"
    content = json.loads((TINY / file).read_text())[part]
    if part == "added_tokens_decoder":
        content["5"] |= changed
    elif part == "model":
        content |= {"vocab": {name: at for name, at in content["vocab"].items() if name != "a"}, "merges": []}
    else:
        content = changed
    text = Tokenizer(edited(file, **{part: content}))
    assert text.encode("a" * 5000, most_tokens=1) is not None


def test_what_nfc_composes_is_taken_into_account(edited: Edit) -> None:
    text = Tokenizer(edited("tokenizer.json", normalizer={"type": "NFC"}))
    said = "\u03b1\u0313\u0300\u0345" * 100  # four characters that become one
    ids = text.encode(said)
    assert text.encode(said, most_tokens=len(ids)) == ids
    with pytest.raises(TextTooLong):
        text.encode("a" * 100_000, most_tokens=10)


def test_others_go_on_while_a_long_text_is_encoded(text: Tokenizer) -> None:
    ended, turns = threading.Event(), 0

    def encode() -> None:
        text.encode("a" * 300_000)
        ended.set()

    worker = threading.Thread(target=encode)
    worker.start()
    while not ended.is_set():
        turns += 1
        time.sleep(0.001)
    worker.join()
    assert turns > 10, "the interpreter was locked"


def test_a_chat_is_rendered_by_the_checkpoints_own_template(text: Tokenizer) -> None:
    ids = text.encode_chat([{"role": "user", "content": "Hi"}])
    head = "<|startoftext|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
    assert ids == text.encode(head + "<|start_header_id|>assistant<|end_header_id|>\n\n")


def test_a_final_assistant_message_stays_open_with_its_spaces(text: Tokenizer) -> None:
    chat = [{"role": "user", "content": "Say asynclane."}, {"role": "assistant", "content": "  Yes, "}]
    opened = text.encode_chat(chat[:1])
    assert text.encode_chat(chat) == text.encode(text.decode(opened, specials=True) + "  Yes, ", specials=False)
    alone = text.encode_chat(chat[1:])
    assert text.decode(alone, specials=True).startswith("<|startoftext|>"), "with all that the template puts before it"
    assert text.decode(alone).endswith("  Yes, ")


def test_a_template_without_a_place_for_answers_continues_none(edited: Edit) -> None:
    text = Tokenizer(edited("tokenizer_config.json", chat_template="{{ messages[0].content }}"))
    with pytest.raises(InvalidValue, match="where an assistant's answer starts"):
        text.encode_chat([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes,"}])


def test_bytes_of_tokens_are_those_of_the_text_also_where_a_character_is_cut(text: Tokenizer) -> None:
    said = "Hi wörld 🦆\n"
    ids = text.encode(said, specials=False)
    assert b"".join(map(text.token_bytes, ids)) == said.encode()
    assert any("\N{REPLACEMENT CHARACTER}" in text.pieces[token] for token in ids)
    assert {text.token_bytes(token) for token in (*text.special_ids, 1405)} == {b""}


STEPS = ({"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"})
META = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": False}
SENTENCEPIECE: dict[str, dict[str, Any]] = {
    "llama": {
        "type": "Sequence",
        "decoders": [*STEPS, {"type": "Strip", "content": " ", "start": 1, "stop": 0}],
    },
    "gemma": {"type": "Sequence", "decoders": list(STEPS)},
    "mistral": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, META]},
    "metaspace": META,
}


@pytest.mark.parametrize("decoder", SENTENCEPIECE)
def test_a_sentencepiece_token_has_its_bytes_and_its_space_wherever_it_stands(decoder: str, tmp_path: Path) -> None:
    write_sentencepiece_tokenizer(write_checkpoint(tmp_path, "LLaDAModelLM"), SENTENCEPIECE[decoder])
    text = Tokenizer(tmp_path)
    said = "Hai to é\n🦆 Hai"
    ids = text.encode(said, specials=False)
    assert text.token_strings(ids)[:3] == ["▁Hai", "▁to", "▁"]
    assert b"".join(map(text.token_bytes, ids)) == b" " + said.encode()
    assert [text.token_bytes(token) for token in ids[3:5]] == [b"\xc3", b"\xa9"]
    assert [text.pieces[token] for token in ids[:3]] == [" Hai", " to", " "]
    for placed in (False, True):
        answer = AnswerText(text, placed=placed)
        pieces = [answer.feed([token])[0] for token in ids]
        assert "".join(pieces) + answer.flush() == " " + said
    if decoder != "gemma":
        assert text.decode(ids) == said, "a whole text is decoded as the tokenizer itself does it"


@pytest.mark.parametrize("decoder", SENTENCEPIECE)
async def test_a_grammar_reads_the_tokens_of_sentencepiece(decoder: str, tmp_path: Path) -> None:
    write_sentencepiece_tokenizer(write_checkpoint(tmp_path, "LLaDAModelLM"), SENTENCEPIECE[decoder])
    text = Tokenizer(tmp_path)
    grammars = Grammars(text)
    made = grammars.constraint(await grammars.compile(Wanted("structured_outputs", regex=" Hai é")))
    for token in text.encode("Hai é", specials=False):
        assert made.accept(token, 99)
    assert made.complete


@pytest.mark.parametrize("decoder", [None, {"type": "WordPiece", "prefix": "##", "cleanup": True}])
def test_a_decoder_whose_tokens_have_no_text_of_their_own_is_refused(decoder: Any, tmp_path: Path) -> None:
    write_sentencepiece_tokenizer(write_checkpoint(tmp_path, "LLaDAModelLM"), decoder)
    with pytest.raises(
        BadTokenizer, match=r"the tokenizer's decoder is (None|WordPiece), only ByteLevel, ByteFallback"
    ):
        Tokenizer(tmp_path)


def test_a_template_that_loops_over_parts_gets_parts(edited: Edit) -> None:
    turn = "{{ '<|eot_id|>' + message.role }}{% for part in message.content %}{{ part.text }}{% endfor %}"
    template = f"{{% for message in messages %}}{turn}{{% endfor %}}<|start_header_id|>"
    text = Tokenizer(edited("tokenizer_config.json", chat_template=template))
    assert text.decode(text.encode_chat([{"role": "user", "content": "Hi"}])) == "userHi"
    assert text.token_strings(sorted(text.end_ids)) == ["<|endoftext|>", "<|start_header_id|>"], "it follows the answer"


def test_a_template_that_shows_no_answer_ends_no_turn(edited: Edit) -> None:
    template = "<|eot_id|>{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}"
    assert Tokenizer(edited("tokenizer_config.json", chat_template=template)).end_ids == {1}


def test_a_template_that_fails_later_is_no_fault_of_the_client(edited: Edit) -> None:
    template = "{{ messages[0].content }}{% if messages|length > 2 %}{{ messages + 1 }}{% endif %}"
    text = Tokenizer(edited("tokenizer_config.json", chat_template=template))
    for last in ("user", "assistant"):
        with pytest.raises(EngineFailure, match="the chat template fails: TypeError"):
            text.encode_chat([{"role": role, "content": "Hi"} for role in ("user", "assistant", last)])


def test_without_a_default_among_templates_a_chat_is_refused_by_their_names(edited: Edit) -> None:
    templates = [{"name": name, "template": "{{ messages }}"} for name in ("tool_use", "rag")]
    text = Tokenizer(edited("tokenizer_config.json", chat_template=templates))
    assert not text.has_template
    with pytest.raises(InvalidValue, match=r"chat templates \(rag, tool_use\) is called default: use /v1/completions"):
        text.encode_chat([{"role": "user", "content": "Hi"}])
    named = [*templates, {"name": "default", "template": "{{ messages[0].content }}"}]
    chosen = Tokenizer(edited("tokenizer_config.json", chat_template=named))
    assert chosen.decode(chosen.encode_chat([{"role": "user", "content": "Hi"}])) == "Hi"


def test_what_the_template_refuses_is_a_bad_request(edited: Edit) -> None:
    template = "{{ raise_exception('only one system message') }}"
    text = Tokenizer(edited("tokenizer_config.json", chat_template=template))
    with pytest.raises(InvalidValue, match="only one system message") as caught:
        text.encode_chat([{"role": "user", "content": "Hi"}])
    assert caught.value.param == "messages"
    assert text.end_ids == {1}


def test_without_a_template_a_chat_is_refused_and_points_to_completions(edited: Edit) -> None:
    text = Tokenizer(edited("tokenizer_config.json", chat_template=None))
    with pytest.raises(InvalidValue, match="/v1/completions"):
        text.encode_chat([{"role": "user", "content": "Hi"}])
    assert text.end_ids == {1}


def test_the_mask_may_be_named_by_the_tokenizer_alone(edited: Edit) -> None:
    assert Tokenizer(edited("config.json", mask_token_id=None)).mask_id == 5


def test_without_any_mask_the_checkpoint_is_refused(edited: Edit) -> None:
    edited("config.json", mask_token_id=None)
    edited("special_tokens_map.json", mask_token=None)
    path = edited("tokenizer_config.json", mask_token=None)
    with pytest.raises(ValueError, match="no mask token"):
        _ = Tokenizer(path).mask_id


def test_end_tokens_may_be_several(edited: Edit) -> None:
    assert Tokenizer(edited("generation_config.json", eos_token_id=[1, 3])).end_ids == {1, 3, 4}


def test_the_context_may_have_either_name(edited: Edit) -> None:
    path = edited("config.json", max_sequence_length=None, max_position_embeddings=77)
    assert Tokenizer(path).max_model_len == 77
    path = edited("config.json", max_position_embeddings=None)
    with pytest.raises(ValueError, match="max_position_embeddings"):
        _ = Tokenizer(path).max_model_len


@pytest.mark.parametrize(
    "counts", ["[1, 2]", "{}", "[" + "0," * 1407 + "0]", "[" + "1," * 1407 + "-1]", "[1.5]", "[,]"]
)
def test_counts_of_tokens_that_are_no_counts_of_this_vocabulary_are_refused(edited: Edit, counts: str) -> None:
    path = edited("config.json", use_cache=False)
    (path / "token_frequencies.json").write_text(counts, encoding="utf-8")
    with pytest.raises(BadTokenizer, match=r"token_frequencies\.json (must be a list of counts|is not JSON)"):
        _ = Tokenizer(path).vocabulary


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadTokenizer, match=r"has no tokenizer\.json"):
        Tokenizer(tmp_path)


def test_the_server_needs_no_torch() -> None:
    script = f"""
import sys
from pathlib import Path
import asynclane.server.app, asynclane.server.cli.main
from asynclane.server.text.tokenizer import Tokenizer
Tokenizer(Path({str(TINY)!r})).encode_chat([{{"role": "user", "content": "Hi"}}])
assert "torch" not in sys.modules, "torch has been imported"
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
