"""The engine: its loop, its answers, its messages, and the composition root that builds it."""
