"""Helpers that several commit rules use."""
