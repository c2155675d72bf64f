"""Finds a repository of Hugging Face in the local cache, and fetches one only on request."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .config import ModelError

# Of a repository: weights in one format, and what a tokenizer and a chat template may need. No code.
FETCHED = ("*.safetensors", "*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken")

_NAME = re.compile(r"(?P<id>\w[\w.-]*/\w[\w.-]*)(@(?P<revision>[^@\s]+))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Repository:
    """`OWNER/NAME` or `OWNER/NAME@REVISION`: a branch, a tag or a whole commit hash."""

    id: str
    revision: str | None = None

    @classmethod
    def named(cls, name: str) -> Repository | None:
        """None for what cannot be one."""
        found = _NAME.fullmatch(name)
        return cls(found["id"], found["revision"]) if found else None

    @property
    def download(self) -> str:
        """The command that fetches it."""
        return f"hf download {self.id}" + (f" --revision {self.revision}" if self.revision else "")

    def snapshot(self) -> Path:
        """Its directory in the cache that `HF_HOME` or `HF_HUB_CACHE` name. Raises `ModelError`."""
        # Here, since a directory or an embedded model needs none of it.
        from huggingface_hub import constants, try_to_load_from_cache

        try:
            found = try_to_load_from_cache(self.id, "config.json", revision=self.revision)
        except ValueError as error:  # a name that no repository has
            raise ModelError(str(error)) from None
        if isinstance(found, str):
            return Path(found).parent
        revision = f" at revision {self.revision}" if self.revision else ""
        raise ModelError(
            f"{self.id}{revision} is no directory here, and the cache {constants.HF_HUB_CACHE} has no config.json of"
            f" it: serve it with `--download`, or run `{self.download}`; if it is gated,"
            f" request access on https://huggingface.co/{self.id} and run `hf auth login` before"
        )

    def fetch(self, check: Callable[[Path], object]) -> Path:
        """Its directory in the cache after what is missing was fetched, with progress bars on stderr. `check` gets the
        directory while it has only small files, and may raise to refuse the weights. Raises `ModelError`."""
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

        small = [pattern for pattern in FETCHED if pattern != "*.safetensors"]
        try:
            check(Path(snapshot_download(self.id, revision=self.revision, allow_patterns=small)))
            return Path(snapshot_download(self.id, revision=self.revision, allow_patterns=list(FETCHED)))
        except ModelError:
            raise
        except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise ModelError(f"{self.id} cannot be downloaded: {reason}") from None


def interrupted(directory: Path) -> bool:
    """True if `hf download` has left a file unfinished, beside a snapshot's blobs or within a local directory."""
    blobs = directory.parent.parent / "blobs" if directory.parent.name == "snapshots" else None
    places = [directory / ".cache" / "huggingface" / "download", *([blobs] if blobs else [])]
    return any(next(place.rglob("*.incomplete"), None) is not None for place in places)
