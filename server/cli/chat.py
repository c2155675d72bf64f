"""`asynclane chat`: a conversation with a running server."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

import httpx

from ...clients import Client, ClientError
from ...clients.cli import Chat
from ..settings import api_key_from
from .params import parse_params


def chat_main(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Raises `ValueError` with one line that says what is wrong."""
    given = {name: getattr(arguments, name) for name in ("max_tokens", "temperature", "decoder")}
    try:
        options = parse_params(arguments.params) | {name: value for name, value in given.items() if value is not None}
        with Client(arguments.url, api_key=arguments.api_key or api_key_from(environ)) as client:
            model = arguments.model or client.models()[0].id
            return Chat(client, model, system=arguments.system, options=options).run()
    except ClientError as error:
        raise ValueError(str(error)) from None
    except (ValueError, httpx.InvalidURL) as error:  # a malformed URL, or a key or text that cannot be sent
        raise ValueError(f"this cannot be sent: {error}") from None
