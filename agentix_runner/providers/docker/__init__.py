"""Sandboxes in containers of a Docker engine. `DockerProvider` is the one public name."""

from .provider import DockerProvider

# Its public name: runs are told apart by it, and run directories keep it.
DockerProvider.__module__ = __name__

__all__ = ["DockerProvider"]
