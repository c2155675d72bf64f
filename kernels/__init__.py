"""The arithmetic of a step: one folder for each group of operations, with a torch reference and a Triton kernel."""
