"""Triton kernels, one for each operation of `reference`. Importing a module here imports triton; `ops` does so when it
meets a CUDA tensor."""
