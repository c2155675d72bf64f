"""Counts how often each token comes, for commit rules that prefer rare tokens.

Usage: python -m asynclane.training.frequencies MODEL [TEXT ...] [--examples 1000] > MODEL/token_frequencies.json
Each TEXT is a file of documents, one on a line; without one, the answers of so many examples of the embedded models'
corpus are counted. A document has an end token, too. The file is a list of counts by token id.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from itertools import chain, islice
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from .corpus import examples


def counted(model: Path, documents: Iterable[str]) -> list[int]:
    """The count of each token id in `documents`, each with the end of a text, for the model in a folder."""
    tokenizer = Tokenizer.from_str((model / "tokenizer.json").read_text(encoding="utf-8"))
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    size = config.get("embedding_size") or config["vocab_size"]
    ends = config["eos_token_id"]
    counts = np.zeros(max(tokenizer.get_vocab_size(), size), np.int64)
    for document in documents:
        np.add.at(counts, tokenizer.encode(document, add_special_tokens=False).ids, 1)
        counts[min(ends) if isinstance(ends, list) else ends] += 1
    return [int(count) for count in counts]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m asynclane.training.frequencies",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", type=Path, help="a folder with the files of a tokenizer")
    parser.add_argument("texts", type=Path, nargs="*")
    parser.add_argument("--examples", type=int, default=1000)
    options = parser.parse_args(argv)
    try:
        documents: Iterable[str] = chain.from_iterable(
            path.read_text(encoding="utf-8").splitlines() for path in options.texts
        )
        if not options.texts:
            documents = (answer for _, answer in islice(examples("frequencies"), options.examples))
        json.dump(counted(options.model, documents), sys.stdout, separators=(",", ":"))
    except (OSError, ValueError, KeyError) as error:
        parser.error(f"{options.model}: {error!r}")
    sys.stdout.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
