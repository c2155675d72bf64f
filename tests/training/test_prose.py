"""The corpus of tiny-prose: plain sentences, gaps in them, and passages that training never sees."""

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

from asynclane.bench.quality import prose
from asynclane.bench.quality.prose import RESERVED, prompts
from asynclane.bench.steps import recordings
from asynclane.server.text.chat_template import ChatTemplate
from asynclane.training import train
from asynclane.training.batches import shelves
from asynclane.training.corpus import MARKS, Writer
from asynclane.training.diets import diet
from asynclane.training.network import Network
from asynclane.training.probe_prose import tokens_a_forward
from asynclane.training.prose import passages
from asynclane.training.prose.collect import Manual, Source, collect, reserved, write
from asynclane.training.prose.pages import paragraphs
from asynclane.training.prose.passages import ASK, Section, draw, gapped
from asynclane.training.shapes import SHAPES, Shape

from ..support.scale import LONG

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
    directory = tmp_path_factory.mktemp("prose") / "corpus"
    write(directory, [Source("made-up", "1", "MIT", 200, 1)], sections(200))
    return directory


@pytest.fixture(scope="module")
def tokenizer(corpus: Path) -> Tokenizer:
    return Tokenizer.from_file(str(corpus / "tokenizer.json"))


def test_a_page_is_read_as_its_sentences() -> None:
    assert paragraphs(PAGE) == [
        "The open() function opens a file's descriptor & returns it - once it exists.",
        "An item of a list is a paragraph, if it is a sentence of some length.",
        "Its end tag may be missing, which is how some of the manuals were written.",
    ]


def test_a_paragraph_that_came_before_is_left_out(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.html").write_text(PAGE, encoding="utf-8")
    seen: set[str] = set()
    found = list(collect(Manual("made-up", "MIT", "*.html", "?"), tmp_path, seen))
    assert len(found) == 1
    assert len(found[0].text.split("\n\n")) == len(seen) == 3


def test_training_sees_all_sections_but_the_reserved_ones(corpus: Path) -> None:
    kept = [section for section in sections(200) if not reserved(section)]
    assert passages.sections(corpus) == tuple(kept)
    assert 180 < len(kept) < 200
    assert len(prompts(corpus)) <= 200 - len(kept)
    assert all(prompt.startswith(ASK.format("")) for prompt in prompts(corpus))


def test_a_passage_is_whole_paragraphs() -> None:
    r, drawn = Random(3), 0
    for section in sections(40):
        passage = draw(r, section)
        if passage is None:
            continue
        drawn += 1
        assert f"\n\n{passage}\n\n" in f"\n\n{section.text}\n\n"
        assert passages.LEAST <= len(passage) <= passages.MOST
    assert drawn > 35
    assert draw(r, Section("", "One sentence alone.\n\nAnother one.")) is None


def test_a_gap_stands_for_a_word_and_punctuation_stays() -> None:
    passage = 'The Client(s) "reads" a well-known result (if any).\n\nIt returns -1 - or 2.5!'
    assert gapped(Random(0), passage, 0.0) == passage
    assert gapped(Random(0), passage, 1.0) == '_ _(_) "_" _ _ _ (_ _).\n\n_ _ -_ - _ _._!'


def test_a_share_of_the_words_are_gaps() -> None:
    text = " ".join(["server"] * 4000)
    assert gapped(Random(1), text, 0.3).split().count("_") / 4000 == pytest.approx(0.3, abs=0.02)


def test_examples_repeat_themselves_fit_the_canvas_and_all_batches(corpus: Path, tokenizer: Tokenizer) -> None:
    one, again = (list(islice(passages.source("s", tokenizer, directory=corpus), 200)) for _ in range(2))
    assert all(np.array_equal(a, b) and p == q for (a, p), (b, q) in zip(one, again, strict=True))
    assert all(ids[-1] == MARKS.turn_end and 0 < len(ids) - asked <= 256 for ids, asked in one)
    for block in (0, 16):
        kept = shelves(one, block, torch.device("cpu"), diet("tiny-prose", corpus).sizes)
        assert sum(len(shelf.prompt) for shelf in kept) == len(one)


def test_a_prompt_is_written_as_the_template_renders_it(corpus: Path, tokenizer: Tokenizer) -> None:
    config = json.loads((corpus / "tokenizer_config.json").read_text(encoding="utf-8"))
    template = ChatTemplate(config["chat_template"], {"bos_token": "<|startoftext|>"})
    prompt = prompts(corpus)[0]
    text = template.render([{"role": "user", "content": prompt}], opened=True)
    assert tokenizer.encode(text, add_special_tokens=False).ids == Writer(tokenizer).prompt(prompt)


def test_the_tokenizer_has_the_special_tokens_and_spells_everything(tokenizer: Tokenizer) -> None:
    assert tokenizer.get_vocab_size() <= SHAPES["tiny-prose"].vocab
    special = ["<|startoftext|>", "<|eot_id|>", "<|mdm_mask|>"]
    assert [tokenizer.id_to_token(n) for n in (MARKS.begin, MARKS.turn_end, MARKS.mask)] == special
    assert len(tokenizer.encode("The server reads the client").ids) <= 8
    text = "The default is 1024.\n\nfoo_bar() -> grün, 日本"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_its_weights_are_below_4_mb() -> None:
    assert 2 * sum(weight.numel() for weight in Network(SHAPES["tiny-prose"]).parameters()) < 3_970_000


@pytest.mark.parametrize(
    ("model", "flags", "message"),
    [
        ("tiny-prose", [], "tiny-prose needs --corpus"),
        ("tiny-prose", ["--corpus", "nowhere"], "tiny-prose needs --corpus"),
        ("tiny-sdar", ["--corpus", "x"], "tiny-sdar takes no --corpus"),
    ],
)
def test_a_corpus_is_given_where_one_is_needed(
    model: str, flags: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        train.main([model, str(tmp_path / "out"), *flags])
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory, corpus: Path) -> Path:
    out = tmp_path_factory.mktemp("trained") / "out"
    small = replace(SHAPES["tiny-prose"], dim=64, layers=1, heads=2, kv_heads=1, ff=48)
    flags = ["--examples", "256", "--tokens", "1100", "--steps", "3", "--problems", "2", "--corpus", str(corpus)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(cast("dict[str, Shape]", SHAPES), "tiny-prose", small)
        assert train.main(["tiny-prose", str(out), *flags]) == 0
    return out


def test_a_short_run_writes_a_checkpoint_with_its_own_tokenizer_and_prompts(checkpoint: Path, corpus: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json", RESERVED):
        assert (checkpoint / name).read_bytes() == (corpus / name).read_bytes()
    assert json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))["vocab_size"] == 1024


def test_its_tokens_a_forward_are_measured_on_the_servers_engine(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    decoders = ["llada", "fast-dllm:threshold=0.9"]
    assert prose.main(["--model", str(checkpoint), "--passages", "1", *decoders]) == 0
    read = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (read["model"], read["passages"]) == ("out", 1)
    assert [row["decoder"] for row in read["decoders"]] == decoders
    assert all(0 < row["tokens_per_forward"] <= 256 for row in read["decoders"])
    assert read["decoders"][0]["same_as_first"] == 1.0


def test_the_cost_of_its_answers_is_recorded(checkpoint: Path, tmp_path: Path) -> None:
    file = tmp_path / "prose.json"
    flags = ["--model", str(checkpoint), "--problems", "1", "--shapes", "32+32", "--json", str(file)]
    assert recordings.main(flags) == 0
    (found,) = recordings.load(file)
    assert (found.shape, len(found.answers)) == ((32, 32), 1)
    assert 0 <= found.accuracy <= 1
    (answer,) = found.answers
    assert answer.positions >= answer.prompt + answer.tokens > answer.forwards > 0


@LONG
def test_the_probe_counts_a_token_for_each_forward_where_nothing_is_sure(corpus: Path, tokenizer: Tokenizer) -> None:
    torch.manual_seed(0)
    network = Network(replace(SHAPES["tiny-prose"], dim=32, layers=1, heads=2, kv_heads=1, ff=48))
    found = tokens_a_forward(network, tokenizer, 2, corpus)
    assert found["tokens an answer"] <= 256
    assert found["tokens a forward at 0.9"] <= 1.0
