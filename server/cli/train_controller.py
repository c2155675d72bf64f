"""`asynclane train-controller`: fits the small network of a learnt commit rule to a user's own model."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace

from ...training.controllers.command import train
from ..errors import ApiError
from ..settings import read_settings


def train_controller_main(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Raises `ValueError` and `OSError` with one line that says what is wrong."""
    settings = replace(read_settings(arguments, environ), decoder=arguments.method, preset=None, controller=None)
    try:
        return train(arguments, settings)
    except (ApiError, TypeError) as error:  # tokenizers raise TypeError for lone surrogates
        raise ValueError(str(error)) from None
