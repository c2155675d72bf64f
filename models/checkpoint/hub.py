"""Finds a repository of Hugging Face in the local cache, and never fetches one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from .config import ModelError

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
            f" it: run `{self.download}`; if it is gated, request access on https://huggingface.co/{self.id} and run"
            " `hf auth login` before"
        )


def interrupted(directory: Path) -> bool:
    """True if `hf download` has left a file unfinished, beside a snapshot's blobs or within a local directory."""
    blobs = directory.parent.parent / "blobs" if directory.parent.name == "snapshots" else None
    places = [directory / ".cache" / "huggingface" / "download", *([blobs] if blobs else [])]
    return any(next(place.rglob("*.incomplete"), None) is not None for place in places)
