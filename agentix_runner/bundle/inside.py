"""The part of assembling that runs on the interpreter that is bundled: in this process, or in a base image's container
(`python -m agentix_runner.bundle.inside SPEC`). Standard library only.

SPEC is JSON: "out" (the folder to fill), "python" (whether to collect the interpreter), "seed" (what the host brings),
"known" (libraries that the interpreter's part has), "requirements", "pip_args" and "where" for pip. In "out" there are
then python/ and site/, each standing for /agentix, and facts.json.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

from . import SITE
from .interpreter import CannotCollect, all_files, collect_libraries, collect_python, compile_tree, python_facts
from .project import add_seed, install


def gather(spec: dict[str, Any], on_line: Callable[[str], None] = print) -> dict[str, Any]:
    """Do what `spec` says. Returns what is written to facts.json: "version", "loader" (its name, None for a static
    interpreter), "libraries" (their names) and "missing" (what was not found, as "FILE needs NAME").

    Raises:
        CannotCollect: something of it can't be done.
    """
    out = spec["out"]
    facts = python_facts()
    python = os.path.join(out, "python")
    known = set(spec["known"])
    if spec["python"]:
        on_line(f"copying Python {facts['version']} from {facts['executable']}")
        collect_python(python)
        known.update(os.listdir(os.path.join(python, "lib")))
    root = os.path.join(out, "site")
    site = os.path.join(root, os.path.basename(SITE))
    os.makedirs(site)
    if spec["requirements"]:
        scripts = os.path.join(root, "bin")
        install(site, scripts, spec["requirements"], pip_args=spec["pip_args"], where=spec["where"], on_line=on_line)
    add_seed(site, spec["seed"])
    missing = []
    if facts["loader"] is not None:
        binaries = list(all_files(root))
        missing = collect_libraries(binaries, facts["loader"], os.path.join(root, "lib"), known=known, inside=root)
    compile_tree(site, SITE)
    loader = facts["loader"] and os.path.basename(facts["loader"])
    made = {"version": facts["version"], "loader": loader, "libraries": sorted(known), "missing": missing}
    with open(os.path.join(out, "facts.json"), "w") as file:
        json.dump(made, file)
    return made


def main() -> int:
    with open(sys.argv[1]) as file:
        spec = json.load(file)
    try:
        gather(spec, lambda line: print(line, flush=True))
    except CannotCollect as error:
        print(f"agentix: {error}", flush=True)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
