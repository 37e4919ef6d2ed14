"""Both ends of the wire between the host and a sandbox."""
