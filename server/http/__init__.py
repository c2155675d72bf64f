"""HTTP itself: middlewares, request bodies, server-sent events."""
