"""Shared by the operations: dispatch by device, argument checks, types, noise."""
