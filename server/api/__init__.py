"""The endpoints: one module each, and the path that chat and completions share."""
