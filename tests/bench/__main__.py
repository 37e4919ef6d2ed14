"""Every figure, by one command: `python -m tests.bench`, or `python -m tests.bench overhead scale` for some of them.

Each benchmark is a module of this package that runs alone too, and is run in a process of its own. What it needs and
lacks (an engine, an extra) it says itself, with exit code 3.
"""

from __future__ import annotations

import argparse
import os
import pkgutil
import subprocess
import sys
import time
from pathlib import Path

from . import show

ROOT = Path(__file__).parents[2]
FIRST = ("overhead", "scale", "dask", "sandboxes")
"""Their order; whatever else is there comes after them."""
NOT_BENCHMARKS = ("__main__", "show", "test_bench")

UNAVAILABLE = 3
"""The exit code of a benchmark that can't run here; the last line on its stderr says why."""


def benchmarks() -> list[str]:
    found = [m.name for m in pkgutil.iter_modules([str(Path(__file__).parent)]) if m.name not in NOT_BENCHMARKS]
    return sorted(found, key=lambda name: (FIRST.index(name) if name in FIRST else len(FIRST), name))


def main() -> int:
    there = benchmarks()
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__.split("\n\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(there)} (default: all of them)")
    args = parser.parse_args()
    unknown = set(args.names) - set(there)
    if unknown:
        parser.error(f"there is no benchmark {unknown.pop()!r}: there are {', '.join(there)}")
    show.machine("distributed", "docker", "swebench")
    failed = False
    for name in args.names or there:
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", f"tests.bench.{name}"],
            cwd=ROOT,
            env={**os.environ, show.SHOWN: "1"},
            stderr=subprocess.PIPE,
            text=True,
        )
        if done.returncode == UNAVAILABLE:
            print(f"\n{name}: left out, {done.stderr.strip().splitlines()[-1]}", flush=True)
        elif done.returncode:
            failed = True
            print(f"\n{name} failed with exit code {done.returncode}:\n{done.stderr}", flush=True)
        else:
            print(f"({name}: {time.monotonic() - began:.0f} s)", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
