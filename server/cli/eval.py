"""`asynclane eval`: accuracy and cost of decoders on a file of problems, on a model here or on a running server."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

import httpx

from ...bench.eval.run import evaluate
from ...clients import ClientError
from ..errors import ApiError
from ..settings import OF_EVALUATION, api_key_from, read_settings


def eval_main(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Raises `ValueError` and `OSError` with one line that says what is wrong."""
    if arguments.url is None:
        if arguments.api_key is not None:
            raise ValueError("--api-key is for a server: give its --url")
        arguments.max_num_seqs = arguments.batch
        settings = read_settings(arguments, environ)
    else:
        settings = None
        for name in OF_EVALUATION:
            if name != "model" and getattr(arguments, name) is not None:
                flag = "--" + name.replace("_", "-")
                raise ValueError(f"{flag} is for a model that is loaded here: give it to the server at --url instead")
    try:
        return evaluate(arguments, settings, arguments.api_key or api_key_from(environ))
    except (ApiError, ClientError, httpx.InvalidURL) as error:
        raise ValueError(str(error)) from None
