"""Recognizes a checkpoint by its weights, without reading all of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

from . import lora
from .config import ModelError
from .weights import weight_files

SAMPLE_BYTES = 256  # of each tensor, from its middle
LENGTH = 32  # hexadecimal digits


def fingerprint(directory: Path, adapter: Path | None = None) -> str:
    """The same for the same weights in the same files, whatever their directory is called: a hash of the name, type,
    shape and a sample of each tensor, and of those of an adapter. Raises `ModelError` for a file that cannot be read.

    A sample is 256 bytes, so it takes a read for each tensor. Weights that were trained further differ in nearly all of
    them.
    """
    digest = sha256()
    for path in (*weight_files(directory), *([] if adapter is None else [adapter / lora.WEIGHTS])):
        try:
            for part in _samples(path):
                digest.update(part)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ModelError(f"{path} cannot be read: {error!r}") from None
    return digest.hexdigest()[:LENGTH]


def _samples(path: Path) -> Iterator[bytes]:
    """Format: https://github.com/huggingface/safetensors: the header's size in 8 bytes, the header, the numbers."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        if not 0 < size <= path.stat().st_size:
            raise ValueError("it is no safetensors file")
        header = json.loads(file.read(size))
        for name, tensor in sorted(header.items()):
            if name == "__metadata__":
                continue
            start, end = tensor["data_offsets"]
            yield json.dumps([name, tensor["dtype"], tensor["shape"]]).encode()
            file.seek(8 + size + max(start, (start + end - SAMPLE_BYTES) // 2))
            yield file.read(min(SAMPLE_BYTES, end - start))
