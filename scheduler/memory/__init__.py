"""Slots and pages of the device, and the pages that requests share."""
