"""Figures and pictures of all benchmarks, and counts of the project's structure."""

from pathlib import Path

# The folder of a checkout: an editable install links to it, and a wheel has none.
RESULTS = Path(__file__).resolve().parents[1] / "results"
