"""Evaluation on the public task sets, as papers do it: the command `asynclane eval`."""
