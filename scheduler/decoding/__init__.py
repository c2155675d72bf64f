"""Decoders: lane policies, commit rules and caches in numpy. Knows no request, and imports only the contract."""
