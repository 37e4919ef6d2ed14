"""What the providers' sessions yield, on the host: the connection to a sandbox, and its tunnels on top."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..remote.host.connection import Connection

if TYPE_CHECKING:
    from ..tunnel.tunnel import Tunnel


class RemoteSandbox(Connection):
    """A sandbox as datasets and agents hold it: `remote`, `tunnel` and `kill`."""

    def tunnel(
        self,
        upstream: str,
        *,
        headers: Mapping[str, str | None] | None = None,
        record: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> Tunnel:
        """A way for the sandbox to reach `upstream`, through this process: `with sandbox.tunnel(...) as url:`.

        See `Tunnel` in agentix_runner.tunnel.tunnel for the arguments, and `Limits` beside it for more. Raises
        BadArgument.
        """
        from ..tunnel.tunnel import Tunnel, Tunnels  # most sandboxes have none

        tunnels = self.handler(Tunnels)
        return Tunnel(self, tunnels, upstream, headers=headers, record=record, **options)
