"""The HTTP surface: text in and out, the asyncio engine loop, streams and metrics. No torch."""
