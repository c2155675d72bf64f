"""Bounds on what a client may send, in one table, which docs/operations.md explains. Limits that an operator may change
are settings (`server/settings.py`)."""

from __future__ import annotations

# A body before it is parsed. English takes about 4 bytes a token, escaped text 12, and a list of token ids 7.
BODY_BYTES, BODY_BYTES_PER_TOKEN = 2**20, 32
COMMAS = 500_000  # of its values
CONTAINERS = 10_000  # lists and objects
STRINGS = 50_000  # names and texts

# Lists and objects
MESSAGES = 2048
PARTS = 1024  # of a message's content
PROMPTS = 2048
TEMPLATE = 128  # texts and gaps
CHOICES = 1024  # texts of which the answer is one
STOPS = 16
ALLOWED = 16_384  # token ids that an answer may have
BIASES = 300  # as OpenAI has it; fewer than any vocabulary has tokens, so that not all can be banned
METADATA = 16  # pairs, as OpenAI has it
SAMPLES = 1024  # of Monte Carlo, for the likelihood of a prompt
TOOLS = 128  # and calls of a message
VARIABLES = 64  # of a chat template
DEPTH = 64  # of what a chat template shows: schemas of tools, arguments of calls, variables
SCHEMA_VALUES = 10_000  # of a JSON schema, names not counted

# Characters. Messages, prompts and suffixes are bounded by the context.
MODEL_CHARS = 1024
NAME_CHARS = 64  # of a decoder, of its parameters' values, and of who speaks
LABEL_CHARS = 256  # of a tool call
HINT_CHARS = 1000  # of what changes nothing, as the end user
METADATA_NAME_CHARS, METADATA_TEXT_CHARS = 64, 512
STOP_CHARS = 1000
SALT_CHARS = 1000
GRAMMAR_CHARS = 65_536  # of a JSON schema, an expression, a choice, and what describes a schema


def default_body_bytes(context: int) -> int:
    """The largest body of a server with a context of so many tokens, unless its settings have another."""
    return BODY_BYTES + BODY_BYTES_PER_TOKEN * context
