"""A whole server under load over HTTP: token rates, gaps between chunks, and the share of the device's limit."""
