"""Networks, their weights, keys and values in pages, and the runner that executes a plan on a device."""
