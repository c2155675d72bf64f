"""Runs Triton kernels where there is no GPU: its interpreter must be chosen before triton is first imported."""

from __future__ import annotations

import os

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
