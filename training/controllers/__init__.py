"""Weights of the learnt commit rules, Learn2PD's filter and TSPD's controller.

`python -m asynclane.training.controllers` makes those that are shipped, from traces of the embedded models in plain
torch. `asynclane train-controller` makes those of one model: `command`, from what the server's engine records.
"""
