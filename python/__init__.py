"""An inference server for diffusion language models. `LLM` answers in this process, `asynclane serve` over HTTP.

Nothing is imported before it is used: torch alone takes seconds.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .models.checkpoint.config import ModelError as ModelError
    from .server.engine.messages import Delta as Delta
    from .server.errors import ApiError as ApiError
    from .server.errors import ContextLengthExceeded as ContextLengthExceeded
    from .server.errors import InvalidValue as InvalidValue
    from .server.llm import LLM as LLM
    from .server.llm import CompletionOutput as CompletionOutput
    from .server.llm import RequestOutput as RequestOutput
    from .server.llm import SamplingParams as SamplingParams
    from .server.settings import SettingsError as SettingsError

    __version__: str

PLACES = {
    "LLM": ".server.llm",
    "CompletionOutput": ".server.llm",
    "RequestOutput": ".server.llm",
    "SamplingParams": ".server.llm",
    "Delta": ".server.engine.messages",
    "ApiError": ".server.errors",
    "ContextLengthExceeded": ".server.errors",
    "InvalidValue": ".server.errors",
    "ModelError": ".models.checkpoint.config",
    "SettingsError": ".server.settings",
}

__all__ = ["__version__", *PLACES]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module(".server.settings", __name__).installed_version()
    if name not in PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(PLACES[name], __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
