"""The corpus of tiny-prose: plain sentences, reserved passages that training never sees, the form of its examples."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import islice
from pathlib import Path
from random import Random
from typing import cast

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from asynclane.bench.quality.prose import ASK, MODEL, PASSAGES, prompts
from asynclane.server.text.chat_template import ChatTemplate
from asynclane.training import train
from asynclane.training.batches import shelves
from asynclane.training.corpus import MARKS, Writer
from asynclane.training.diets import DIETS
from asynclane.training.network import Network
from asynclane.training.probe_prose import tokens_a_forward
from asynclane.training.prose import passages
from asynclane.training.prose.collect import Manual, Source, collect, learn_tokenizer, reserved, write
from asynclane.training.prose.pages import paragraphs
from asynclane.training.prose.passages import Section, draw
from asynclane.training.shapes import SHAPES, Shape

PAGE = """<html><head><title>Not this, as it is a title of the page.</title></head><body>
<div class="sphinxsidebar"><p>Navigation is not prose, so this paragraph is left out of the text.</p></div>
<h1>A heading is left out, however much it looks like a sentence of its own.</h1>
<p>The <code>open()</code> function opens a file\u2019s descriptor &amp; returns it\u2014once it
   exists.<a class="headerlink" href="#x">\u00b6</a></p>
<pre>Code = is(left, out) and this line is as long as a sentence would have to be.</pre>
<ul><li>An item of a list is a paragraph, if it is a sentence of some length.
<li>Its end tag may be missing, which is how some of the manuals were written.</ul>
<p>Too short.</p><p>This one has no end and so it is taken for a title or for a part of a table</p>
<p>x = f(y, z); g(a[0], b[1]) -> {1: 2, 3: 4}; h_1(**kwargs) != 0x1f, &lt;&lt;= (1, 2, 3, 4, 5).</p>
</body></html>"""
SUBJECTS = ("server", "client", "cursor", "index", "module", "table", "window", "parser", "thread", "buffer")
VERBS = ("reads", "writes", "returns", "closes", "ignores", "checks", "keeps", "copies")


def sections(count: int) -> list[Section]:
    r = Random(1)

    def sentence() -> str:
        a, b, c = r.sample(SUBJECTS, 3)
        return f"The {a} {r.choice(VERBS)} the {b} before the {c} {r.choice(VERBS)} anything at all."

    def paragraph() -> str:
        return " ".join(sentence() for _ in range(r.randint(1, 4)))

    return [Section("made-up", "\n\n".join(paragraph() for _ in range(8))) for _ in range(count)]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("prose") / "corpus.xz"
    write(file, [Source("made-up", "1", "MIT", 60, 1)], sections(60))
    return file


def test_a_page_is_read_as_its_sentences() -> None:
    assert paragraphs(PAGE) == [
        "The open() function opens a file's descriptor & returns it - once it exists.",
        "An item of a list is a paragraph, if it is a sentence of some length.",
        "Its end tag may be missing, which is how some of the manuals were written.",
    ]


def test_a_paragraph_that_came_before_is_left_out(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.html").write_text(PAGE, encoding="utf-8")
    seen: set[int] = set()
    found = list(collect(Manual("made-up", "MIT", "*.html"), tmp_path, seen))
    assert len(found) == 1
    assert len(found[0].text.split("\n\n")) == len(seen) == 3


def test_a_corpus_is_read_as_it_was_written(corpus: Path) -> None:
    assert passages.sections(corpus) == tuple(sections(60))
    away = [reserved(section) for section in sections(900)]
    assert 10 < sum(away) < 60


def test_a_passage_goes_on_where_its_beginning_ends() -> None:
    r, drawn = Random(3), 0
    for section in sections(40):
        passage = draw(r, section)
        if passage is None:
            continue
        drawn += 1
        beginning, rest = passage
        place = section.text.index(beginning)
        after = section.text[place + len(beginning) :]
        assert after.lstrip().startswith(rest)
        assert section.text[:place].endswith("\n\n") or place == 0
        left = after.lstrip()[len(rest) :]
        assert not left or left.startswith("\n\n"), "an answer ends with a paragraph"
        assert passages.LEAST_ANSWER <= len(rest) <= passages.MOST_ANSWER
    assert drawn > 35
    assert draw(r, Section("", "One sentence alone. Another one.")) is None


def test_examples_repeat_themselves_fit_the_canvas_and_all_batches(corpus: Path) -> None:
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    one, again = (list(islice(passages.source("s", tokenizer, file=corpus), 200)) for _ in range(2))
    assert all(np.array_equal(a, b) and p == q for (a, p), (b, q) in zip(one, again, strict=True))
    assert all(ids[-1] == MARKS.turn_end and 0 < len(ids) - asked <= 256 for ids, asked in one)
    for block in (0, 16):
        kept = shelves(one, block, torch.device("cpu"), DIETS["tiny-prose"].sizes)
        assert sum(len(shelf.prompt) for shelf in kept) == len(one)


def test_a_prompt_is_written_as_the_template_renders_it() -> None:
    config = json.loads((MODEL / "tokenizer_config.json").read_text(encoding="utf-8"))
    template = ChatTemplate(config["chat_template"], {"bos_token": "<|startoftext|>"})
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    text = template.render([{"role": "user", "content": prompts(1)[0]}], opened=True)
    assert tokenizer.encode(text, add_special_tokens=False).ids == Writer(tokenizer).prompt(prompts(1)[0])


def test_the_tokenizer_has_the_special_tokens_and_spells_everything() -> None:
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    assert tokenizer.get_vocab_size() <= SHAPES["tiny-prose"].vocab
    assert [tokenizer.id_to_token(n) for n in (MARKS.begin, MARKS.turn_end, MARKS.mask)] == [
        "<|startoftext|>",
        "<|eot_id|>",
        "<|mdm_mask|>",
    ]
    text = "The default is 1024.\n\nfoo_bar() -> grün, 日本"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_a_tokenizer_is_learnt_with_its_other_files(tmp_path: Path) -> None:
    learn_tokenizer([section.text for section in sections(60)], tmp_path)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert len(tokenizer.encode("The server reads the client").ids) <= 8
    assert tokenizer.token_to_id("<|mdm_mask|>") == MARKS.mask
    assert (tmp_path / "tokenizer_config.json").is_file()


def test_reserved_beginnings_are_different_and_asked_for() -> None:
    found = json.loads(PASSAGES.read_text(encoding="utf-8"))
    assert len({beginning for _, beginning in found}) == len(found) >= 300
    assert prompts(2) == [ASK.format(beginning) for _, beginning in found[:2]]
    for count in (0, len(found) + 1):
        with pytest.raises(ValueError, match="passages"):
            prompts(count)


def test_its_files_are_small() -> None:
    weights = 2 * sum(weight.numel() for weight in Network(SHAPES["tiny-prose"]).parameters())
    assert weights < 3_970_000
    assert sum(path.stat().st_size for path in MODEL.iterdir() if path.suffix != ".safetensors") < 150_000


@pytest.mark.parametrize(
    ("model", "flags", "message"),
    [
        ("tiny-prose", [], "tiny-prose needs --corpus"),
        ("tiny-sdar", ["--corpus", "x"], "tiny-sdar takes no --corpus"),
        ("tiny-prose", ["--corpus", "nowhere.xz"], "nowhere.xz"),
    ],
)
def test_a_corpus_is_given_where_one_is_needed(
    model: str, flags: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        train.main([model, str(tmp_path / "out"), *flags])
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_short_run_writes_a_checkpoint_with_its_own_tokenizer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, corpus: Path
) -> None:
    small = replace(SHAPES["tiny-prose"], dim=32, layers=1, heads=2, kv_heads=1, ff=48)
    monkeypatch.setitem(cast("dict[str, Shape]", SHAPES), "tiny-prose", small)
    flags = ["--examples", "256", "--tokens", "1100", "--steps", "3", "--problems", "0", "--corpus", str(corpus)]
    assert train.main(["tiny-prose", str(tmp_path / "out"), *flags]) == 0
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "out" / name).read_bytes() == (MODEL / name).read_bytes()
    assert json.loads((tmp_path / "out" / "config.json").read_text(encoding="utf-8"))["vocab_size"] == 1024


def test_the_probe_counts_a_token_for_each_forward_where_nothing_is_sure() -> None:
    torch.manual_seed(0)
    network = Network(replace(SHAPES["tiny-prose"], dim=32, layers=1, heads=2, kv_heads=1, ff=48))
    with torch.no_grad():
        network.embedding.weight[[MARKS.end, MARKS.turn_end]] = 0.0  # no answer ends before the canvas does
    found = tokens_a_forward(network, Tokenizer.from_file(str(MODEL / "tokenizer.json")), 2, 0)
    assert found["tokens an answer"] <= 256
    assert found["tokens a forward at 0.9"] <= 1.0
