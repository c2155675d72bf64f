"""The forms in which a model reasons and calls tools: those that its chat template shows, or that an operator names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .reasoning import REASONING_FORMATS, ReasoningFormat, reasoning_in
from .tool_calls import TOOL_FORMATS, ToolFormat, format_in

if TYPE_CHECKING:
    from .chat_template import ChatTemplate

OFF = "none"  # no parser
NO_TOOLS = "the model's chat template shows no tools"


@dataclass(frozen=True, slots=True)
class AnswerFormats:
    """`tools` is None where tools are refused, for the reason in `no_tools`. `misfit` is a reason that an operator can
    do something about."""

    tools: ToolFormat | None = None
    reasoning: ReasoningFormat | None = None
    no_tools: str = ""
    misfit: bool = False


def answer_formats(
    template: ChatTemplate | None, tool_parser: str | None = None, reasoning_parser: str | None = None
) -> AnswerFormats:
    """The forms of a model's answers. `tool_parser` and `reasoning_parser` name a row of their tables, or `none`; None:
    the row that the chat template shows."""
    reasoning = None
    if reasoning_parser is not None:
        reasoning = REASONING_FORMATS.get(reasoning_parser)
    elif template is not None:
        reasoning = reasoning_in(template.source)
    tools, reason = None, ""
    if tool_parser == OFF:
        reason = "tools are switched off here, with --tool-parser none"
    elif template is None or not template.shows_tools:
        reason = NO_TOOLS
    else:
        found = format_in(template.source)
        tools = found if tool_parser is None else TOOL_FORMATS[tool_parser]
        if tools is None:
            names = ", ".join(TOOL_FORMATS)
            silent = "the model's chat template does not say how calls are written"
            reason = f"{silent}: name it with --tool-parser ({names})"
        elif found is not None and found is not tools:
            reason = f"the model's chat template writes calls as {found.name}, but --tool-parser is {tools.name}"
            tools = None
    misfit = tools is None and tool_parser != OFF and (tool_parser is not None or "--tool-parser" in reason)
    return AnswerFormats(tools, reasoning, reason, misfit)
