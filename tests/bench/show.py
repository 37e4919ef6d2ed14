"""How a benchmark shows its figures: the machine once, then tables that read well in a terminal and in a README."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from importlib import metadata

import agentix_runner

SHOWN = "AGENTIX_BENCH_MACHINE_SHOWN"
"""Environment variable: the machine has been shown by who runs this benchmark."""


def machine(*packages: str) -> None:
    """Print what the figures were made on and with, once."""
    if SHOWN in os.environ:
        return
    versions = [f"agentix-runner {agentix_runner.__version__}", f"Python {platform.python_version()}"]
    for name in packages:
        try:
            versions.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            versions.append(f"no {name}")
    print(", ".join((_processor(), f"{os.cpu_count()} CPUs", _memory(), platform.platform(), *versions)), flush=True)


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table. The first column is text; the others are figures."""
    cells = [[_text(cell) for cell in row] for row in (columns, *rows)]
    widths = [max(len(row[at]) for row in cells) for at in range(len(columns))]
    print(f"\n{title}\n")
    for number, row in enumerate(cells):
        first, *others = zip(row, widths, strict=True)
        print("| " + " | ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]) + " |")
        if number == 0:
            print(
                "|" + "|".join([":" + "-" * (widths[0] + 1), *("-" * (width + 1) + ":" for width in widths[1:])]) + "|"
            )
    print(flush=True)


def _text(cell: object) -> str:
    if isinstance(cell, float):
        return f"{cell:,.0f}" if abs(cell) >= 100 else f"{cell:.1f}" if abs(cell) >= 10 else f"{cell:.2f}"
    return f"{cell:,}" if isinstance(cell, int) else str(cell)


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            names = {line.partition(":")[2].strip() for line in file if line.startswith("model name")}
        return names.pop() if names else platform.machine()
    except OSError:
        return platform.processor() or platform.machine()


def _memory() -> str:
    try:
        return f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.0f} GiB"
    except (ValueError, OSError):
        return "memory unknown"
