"""What most adapters do in a sandbox: run a command, read and write a file.

These run inside the sandbox, and are called by reference: `sandbox.remote(bash, "ls")`. Standard library only, for any
Linux or macOS. Calls may overlap in threads of one process.
"""

from .bash import BashResult, bash
from .files import MIB, read_file, write_file

__all__ = ["MIB", "BashResult", "bash", "read_file", "write_file"]
