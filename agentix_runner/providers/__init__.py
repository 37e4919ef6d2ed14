"""What makes sandboxes: on this machine (`local`), or in a container engine (`docker`). Runs on the host."""

from .by_name import known_providers, provider_factory

__all__ = ["known_providers", "provider_factory"]
