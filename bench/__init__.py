"""Benchmarks and quality evaluation; each program ends with one JSON line."""
