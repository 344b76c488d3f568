"""Write constraints.txt anew with uv: `make lock`. Needs a package index; installs nothing.

One file serves both environments that the project promises (Python 3.11 with a CPU build of torch, Python 3.12
with a CUDA build), so it is resolved for every Python from 3.11 on, with markers where the two must differ.
torch, triton and setuptools are left out: which build of torch fits is decided on the machine (scripts/install.py),
torch brings its own triton, and some releases of torch set an upper limit on setuptools.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
CONSTRAINTS = REPOSITORY / "constraints.txt"

# Never resolved here; the marker is false everywhere, so that their CUDA packages are not pinned either.
LEFT_OUT = ("torch", "triton", "setuptools")

PINS = """
# what the CUDA image that the GPU measurements run on carries (Python 3.12, torch 2.11, triton 3.6)
accelerate==1.15.0
huggingface-hub==1.33.0
numpy==2.5.2 ; python_version >= '3.12'
safetensors==0.8.0
tokenizers==0.23.2
transformers==5.17.0
# what torch needs besides CUDA, since torch itself is left out
filelock
fsspec
jinja2
networkx
sympy
typing-extensions
"""

HEADER = """\
# Exact versions that pip is held to (pip install --constraint constraints.txt). Written by `make lock`: do not edit.
# It resolves for Python 3.11 with a CPU build of torch and for Python 3.12 with a CUDA build; what differs between
# the two has a marker. torch, triton and setuptools are not pinned: the machine decides which build of torch fits
# (scripts/install.py), a CUDA torch brings the triton it was built with, and releases of torch limit setuptools.
"""


def main() -> int:
    """Resolve and write the file; return the exit status."""
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
    if uv is None:
        print("uv is missing: it is part of the extra `dev`", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder:
        pins = Path(folder) / "pins.in"
        pins.write_text(PINS, encoding="utf-8")
        overrides = Path(folder) / "overrides.txt"
        overrides.write_text(
            "".join(f"{name} ; sys_platform == 'never'\n" for name in LEFT_OUT), encoding="utf-8"
        )
        resolved = subprocess.run(
            [
                uv, "pip", "compile", "--quiet", "--universal", "--python-version", "3.11", "--all-extras",
                "--no-annotate", "--no-header", "--override", str(overrides),
                *(argument for name in LEFT_OUT for argument in ("--no-emit-package", name)),
                "pyproject.toml", str(pins),
            ],
            cwd=REPOSITORY, capture_output=True, text=True, check=False,
        )  # fmt: skip
    if resolved.returncode != 0:
        print(resolved.stderr, file=sys.stderr)
        return 1
    CONSTRAINTS.write_text(HEADER + resolved.stdout, encoding="utf-8")
    print(f"{CONSTRAINTS.name}: {sum('==' in line for line in resolved.stdout.splitlines())} pins")
    return 0


if __name__ == "__main__":
    sys.exit(main())
