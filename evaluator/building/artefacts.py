"""The store of built extensions, by content: equal requests get the same file, whichever candidate asked first.

Only the referee reads and writes it; no role sees the folder. A trusted compiler program made each library from
exactly the sources and flags in its key, so a candidate cannot plant anything.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from evaluator.building.extension_call import ExtensionCall

MAX_LIBRARY_BYTES = 64 << 20
_MAX_STORE_BYTES = 4 << 30
#: Installing a library takes a moment, and referees of a batch share the store.
_LEFT_BEHIND_S = 600.0
#: The compilers that a role finds; see :func:`evaluator.roles.confinement.enter`.
_PATH = f"{os.path.dirname(sys.executable)}:/usr/local/cuda/bin:/usr/local/bin:/usr/bin:/bin"


class ArtefactStore:
    """Libraries in ``folder``, one subfolder per key, each installed completely or not at all."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._prune()

    def key(self, call: ExtensionCall, architectures: str) -> str:
        """Everything that decides the bytes of the library: sources, flags, target, compilers, torch, and the
        compiler program.
        """
        parts = [call.canonical, architectures if call.uses_cuda else "", toolchain()]
        return hashlib.sha256(json.dumps(parts).encode("utf-8", "surrogatepass")).hexdigest()

    def get(self, key: str) -> bytes | None:
        """The library, or None if there is none or it was damaged on disk."""
        folder = self._folder / key
        try:
            library = (folder / "library.so").read_bytes()
            expected = (folder / "sha256").read_text(encoding="ascii")
            os.utime(folder)
        except OSError:
            return None
        return library if hashlib.sha256(library).hexdigest() == expected else None

    def put(self, key: str, library: bytes) -> None:
        """Installs a library. If two are installed at once, the first stays."""
        place = Path(tempfile.mkdtemp(prefix="new-", dir=self._folder))
        (place / "library.so").write_bytes(library)
        (place / "sha256").write_text(hashlib.sha256(library).hexdigest(), encoding="ascii")
        for file in place.iterdir():
            file.chmod(0o444)
        if self.get(key) is None:
            # The stored file does not match its own digest.
            shutil.rmtree(self._folder / key, ignore_errors=True)
        try:
            place.rename(self._folder / key)
        except OSError:
            shutil.rmtree(place)

    def _prune(self) -> None:
        """Removes the least recently used libraries if the store is large, and what a killed referee left
        unfinished.
        """
        found = []
        for folder in self._folder.iterdir():
            try:
                used_s = folder.stat().st_mtime
                size_bytes = sum(file.stat().st_size for file in folder.iterdir())
            except FileNotFoundError:
                continue  # another referee has just installed or removed it
            if folder.name.startswith("new-"):
                if time.time() - used_s > _LEFT_BEHIND_S:
                    shutil.rmtree(folder, ignore_errors=True)
                continue
            found.append((used_s, size_bytes, folder))
        kept_bytes = 0
        for _, size_bytes, folder in sorted(found, reverse=True):
            kept_bytes += size_bytes
            if kept_bytes > _MAX_STORE_BYTES:
                shutil.rmtree(folder, ignore_errors=True)


@functools.cache
def toolchain() -> str:
    """Everything besides the sources that decides the compiler's result, in one line."""
    try:
        torch = version("torch")
    except PackageNotFoundError:
        torch = "none"
    parts = [torch, platform.python_version(), sys.prefix, *platform.libc_ver(), _processor(), _own_program()]
    parts += [_words([compiler, "--version"]) for compiler in ("c++", "nvcc", "ld", "ld.gold")]
    return " | ".join(parts)


def _words(command: list[str]) -> str:
    program = shutil.which(command[0], path=_PATH)
    if program is None:
        return "none"
    shown = subprocess.run([program, *command[1:]], capture_output=True, check=False).stdout
    return f"{program} {hashlib.sha256(shown).hexdigest()[:16]}"


def _processor() -> str:
    """What ``-march=native`` means here."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor()
    facts = [
        line for line in text.split("\n\n")[0].splitlines() if line.startswith(("model", "flags", "Feat"))
    ]
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]


def _own_program() -> str:
    digest = hashlib.sha256()
    here = Path(__file__).parent
    for path in sorted((*here.glob("*.py"), *here.glob("headers/**/*.h"))):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
