"""Ray Serve: `asynclane.deploy.ray:app` runs replicas with one engine each."""

from .builder import app

__all__ = ["app"]
