"""The arithmetic of a step. `reference` holds plain torch: the CPU path, and the truth for faster kernels."""
