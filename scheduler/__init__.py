"""Decides what every step computes: requests, lanes, pages, budget. Pure Python and numpy, no torch, no clock."""
