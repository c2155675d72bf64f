"""`asynclane bench`: a load on a running server."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

import httpx

from ...bench.load.run import load_main
from ...clients import ClientError
from ..settings import api_key_from


def bench_main(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Raises `ValueError` and `OSError` with one line that says what is wrong."""
    try:
        return load_main(arguments, api_key_from(environ))
    except (ClientError, httpx.InvalidURL) as error:
        raise ValueError(str(error)) from None
