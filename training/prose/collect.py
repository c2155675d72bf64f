"""Collects the corpus of tiny-prose from the manuals in Debian packages, and learns its tokenizer.

Usage: python -m asynclane.training.prose.collect DIR
Each package is downloaded with `apt-get download` and unpacked, not installed. DIR gets an xz archive of JSON lines (a
table of the packages, then one section a line), the files of a tokenizer, and reserved.json: package and prompt of
passages for measurements. Paragraphs that occur twice are kept once. A section is reserved by a hash of its text;
training never sees it.
"""

from __future__ import annotations

import argparse
import json
import lzma
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from ...bench.quality.prose import RESERVED
from ...models.checkpoint.registry import find_model
from ..export import TOKENIZER_FILES
from .pages import paragraphs
from .passages import ASK, CORPUS, GAPS, Section, draw, gapped

VOCABULARY = 1024
SECTION = 2400  # characters, about
ONE_IN = 30  # sections is reserved
PROMPTS = 200  # of reserved sections
SPECIAL_FROM = "tiny-llada"  # whose special tokens and chat template this one has


@dataclass(frozen=True, slots=True)
class Manual:
    """A Debian package, the licence of its text, and where its pages are."""

    package: str
    license: str
    pages: str
    without: str  # in a page's path


MANUALS = (
    Manual("python3.11-doc", "PSF-2.0", "usr/share/doc/python3.11/html/**/*.html", "/whatsnew/"),
    Manual("postgresql-doc-15", "PostgreSQL", "usr/share/doc/postgresql-doc-15/html/*.html", "/release"),
    Manual("sqlite3-doc", "public domain", "usr/share/doc/sqlite3/**/*.html", "/releaselog/"),
    Manual("apache2-doc", "Apache-2.0", "usr/share/doc/apache2-doc/manual/en/**/*.html", "?"),
    Manual("python-django-doc", "BSD-3-Clause", "usr/share/doc/python-django-doc/html/**/*.html", "/releases/"),
    Manual("cmake-doc", "BSD-3-Clause", "usr/share/doc/cmake-data/html/**/*.html", "/release/"),
    Manual("nodejs-doc", "MIT", "usr/share/doc/nodejs/api/*.html", "/all.html"),
    Manual("python-sqlalchemy-doc", "MIT", "usr/share/doc/python-sqlalchemy-doc/html/**/*.html", "/changelog/"),
    Manual("sphinx-doc", "BSD-2-Clause", "usr/share/doc/sphinx-doc/html/**/*.html", "changes"),
)


@dataclass(frozen=True, slots=True)
class Source:
    """A line of the corpus's table."""

    package: str
    version: str
    license: str
    sections: int
    characters: int


def collect(manual: Manual, folder: Path, seen: set[str]) -> Iterator[Section]:
    """The sections of a package that is unpacked in `folder`, without paragraphs that were `seen`."""
    for page in sorted(folder.glob(manual.pages)):
        if not page.is_file() or page.is_symlink() or manual.without in f"/{page.relative_to(folder)}":
            continue
        kept, length = [], 0
        for paragraph in paragraphs(page.read_text(encoding="utf-8", errors="replace")):
            key = paragraph.lower()
            if key in seen:
                continue
            seen.add(key)
            kept.append(paragraph)
            length += len(paragraph)
            if length >= SECTION:
                yield Section(manual.package, "\n\n".join(kept))
                kept, length = [], 0
        if len(kept) > 1:
            yield Section(manual.package, "\n\n".join(kept))


def reserved(section: Section) -> bool:
    return zlib.crc32(section.text.encode()) % ONE_IN == 0


def unpacked(package: str, into: Path) -> str:
    """Downloads a package; its version."""
    into.mkdir()
    subprocess.run(["apt-get", "download", "-q", package], cwd=into, check=True, stdout=subprocess.DEVNULL)
    (archive,) = into.glob("*.deb")
    subprocess.run(["dpkg-deb", "-x", archive, into], check=True)
    shown = subprocess.run(["dpkg-deb", "-f", archive, "Version"], check=True, capture_output=True, text=True)
    return shown.stdout.strip()


def write(directory: Path, sources: Sequence[Source], sections: Sequence[Section]) -> None:
    """Writes the corpus, the tokenizer and the reserved prompts."""
    kept, away = ([section for section in sections if reserved(section) is out] for out in (False, True))
    lines = [json.dumps({"sources": [asdict(source) for source in sources]}), *map(json.dumps, kept)]
    directory.mkdir(parents=True, exist_ok=True)
    (directory / CORPUS).write_bytes(lzma.compress("\n".join(lines).encode() + b"\n", preset=9))
    learn_tokenizer([section.text for section in kept], directory)
    r = Random(0)
    drawn = [[s.source, ASK.format(gapped(r, passage, GAPS))] for s in away if (passage := draw(r, s)) is not None]
    prompts = r.sample(drawn, min(PROMPTS, len(drawn)))
    (directory / RESERVED).write_text(json.dumps(prompts, indent=0) + "\n", encoding="utf-8")


def learn_tokenizer(texts: Sequence[str], directory: Path) -> None:
    """Byte-level BPE with digits apart, and the other files of a tokenizer."""
    like = find_model(SPECIAL_FROM)
    first = Tokenizer.from_file(str(like / "tokenizer.json"))
    special = [first.id_to_token(number) for number in sorted(first.get_added_tokens_decoder())]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"), pretty=False)
    for name in set(TOKENIZER_FILES) - {"tokenizer.json"}:
        (directory / name).write_bytes((like / name).read_bytes())


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, metavar="DIR")
    options = parser.parse_args(argv)
    seen: set[str] = set()
    sections: list[Section] = []
    sources: list[Source] = []
    with tempfile.TemporaryDirectory() as folder:
        for manual in MANUALS:
            into = Path(folder) / manual.package
            version = unpacked(manual.package, into)
            found = list(collect(manual, into, seen))
            characters = sum(len(section.text) for section in found)
            sources.append(Source(manual.package, version, manual.license, len(found), characters))
            sys.stdout.write(f"{manual.package} {version}: {len(found)} sections, {characters} characters\n")
            sections += found
    write(options.directory, sources, sections)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
