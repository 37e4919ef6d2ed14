"""Bundles: images that hold one tree, `/agentix`, with a Python of its own that runs in an image with nothing else.

    /agentix/bin/python                   the interpreter; bin also holds the scripts of what is installed
    /agentix/lib/                         the loader, the shared libraries, and the standard library
    /agentix/site-packages/               the remote side, cloudpickle, the project and what it needs

    collect.py, site.py   what goes into the tree: the interpreter; the packages
    assemble.py           the tree, as two layers, from this interpreter or (base.py) from a base image's
    additions.py          what `--add` puts there besides, and the libraries that it needs
    elf.py, patchelf.py   what binaries need, and how they are told where it is
    layers.py             trees as tar files that are the same for the same content
    build.py, default.py  the image; the one for runs that name none
    volumes.py, marks.py  the volume that is mounted in sandboxes, one for each bundle; who uses it
    cache.py              where all that is made and kept on the host

A sandbox runs the guard under `PYTHON -I -S`: isolated, so that the image's environment can't break it, and without
`site`; SITE comes at the end of the path. Programs that are started with PYTHON without those flags find SITE too.
"""

from __future__ import annotations

ROOT = "/agentix"
PYTHON = f"{ROOT}/bin/python"
SITE = f"{ROOT}/site-packages"

BUNDLE_LABEL = "agentix.bundle"
"""On bundle images ("1") and on bundle volumes."""
DIGEST_LABEL = "agentix.bundle.digest"
"""On bundle images and volumes: "sha256:..." of the content."""
INPUTS_LABEL = "agentix.bundle.inputs"
"""On default bundles: a hash of all that it was made from."""
PYTHON_LABEL = "agentix.python"
"""On bundle images: the interpreter's version, as in "3.11.7"."""
VERSION_LABEL = "agentix.version"
"""On bundle images: the version of agentix-runner that it holds."""
