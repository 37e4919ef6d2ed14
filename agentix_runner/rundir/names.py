"""Names for files and folders, made from names that others chose (instance ids, an agent's files).

An id is never a path. What comes out holds only letters, digits and `-_.~%`; two ids never share a name, also on a
file system that ignores case or normalises Unicode; and the id can be read back.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

from ..errors import BadArgument

PATCH_FILE = "patch.diff"
LOG_FILE = "sandbox.log"
ID_FILE = "instance.json"
"""In a folder whose name is too short for the whole id: the id and the attempt."""

MAX_NAME = 150
"""How long an id may be, encoded, before its folder is named by a prefix and a hash; characters."""
_PREFIX = 80
_EXTENSION = re.compile(r"(?:\.[A-Za-z0-9]{1,10}){1,2}\Z")
_RESERVED = frozenset({PATCH_FILE, LOG_FILE, ID_FILE})
_FOLDER = re.compile(r"[^A-Za-z0-9_-]|\A-")
_FILE = re.compile(r"[^A-Za-z0-9_.-]|\A[-.]")


def safe_name(instance_id: str, attempt: int = 0) -> str:
    """The folder of an attempt at an instance: the encoded id, and ".<attempt>" from the second attempt on.

    All but letters, digits, `_` and `-` is percent-encoded. Where there are capitals, "~" and a number in hex follow,
    whose bits tell which characters they are: "Ab" is "Ab~1". Ids that would take more than 150 characters are cut
    and end in "~~" and a hash; of all others what stands before the "~" is the id again, once it is decoded.

    Raises:
        BadArgument: the id is empty, or the attempt is negative.
    """
    if not instance_id or attempt < 0:
        raise BadArgument(
            f"instance {instance_id!r}, attempt {attempt}: the id must not be empty, the attempt 0 or more"
        )
    name = _spelled(_encode(instance_id, _FOLDER))
    if len(name) > MAX_NAME:
        name = _cut(_encode(instance_id, _FOLDER)) + "~~" + _digest(instance_id)
    return f"{name}.{attempt}" if attempt else name


def is_cut(name: str) -> bool:
    """Whether a folder's name does not hold the whole id."""
    return "~~" in name


def safe_file_name(name: str) -> str:
    """A file name for what an agent saved as `name`: never a path or hidden, never a name that a run uses itself.

    Letters, digits and `._-` stay, the rest is percent-encoded; a long name keeps its extension. Names that differ
    give names that differ, if only by case; see `safe_file_names`.
    """
    encoded = _encode(name, _FILE) or "%"
    if encoded.lower() in _RESERVED:
        encoded = f"%{ord(encoded[0]):02x}{encoded[1:]}"
    if len(encoded) > MAX_NAME:
        extension = _EXTENSION.search(encoded)
        encoded = _cut(encoded) + "~~" + _digest(name) + (extension.group() if extension else "")
    return encoded


def safe_file_names(names: Iterable[str]) -> dict[str, str]:
    """`safe_file_name` for names that go into one folder: those that differ by case alone are told apart."""
    safe = {name: safe_file_name(name) for name in names}
    count: dict[str, int] = {}
    for made in safe.values():
        count[made.lower()] = count.get(made.lower(), 0) + 1
    for name, made in safe.items():
        if count[made.lower()] > 1:
            stem, dot, extension = made.rpartition(".")
            safe[name] = f"{stem}~{_digest(name)}.{extension}" if dot else f"{made}~{_digest(name)}"
    return safe


def _encode(text: str, unsafe: re.Pattern[str]) -> str:
    def escape(match: re.Match[str]) -> str:
        return "".join(f"%{byte:02x}" for byte in match.group().encode("utf-8", "surrogatepass"))

    return unsafe.sub(escape, text)


def _spelled(encoded: str) -> str:
    """`encoded` with its capitals told: the hex digits of an escape are never capitals."""
    capitals = sum(1 << index for index, char in enumerate(encoded) if "A" <= char <= "Z")
    return f"{encoded}~{capitals:x}" if capitals else encoded


def _cut(encoded: str) -> str:
    """The beginning of `encoded`, without half an escape at its end."""
    return re.sub(r"%.?\Z", "", encoded[:_PREFIX]).lower()


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
