"""Compiles without the disk caches: a damaged file there would cost a baseline, and every candidate would look
better.

Inductor replaces a truncated library, but not a truncated Python file, nor a library of zeros.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress

#: The variables that tell Inductor and Triton where their caches are.
_FOLDERS = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")


@contextmanager
def past_what_is_kept() -> Iterator[None]:
    """Hides the caches, so that compilers start over.

    The new files replace the old ones, unless an error is raised.

    It is unknown which file is damaged, and file names depend on their folder, so all are replaced together.
    """
    from torch._inductor.utils import clear_caches

    clear_caches()
    kept = [os.environ[name] for name in _FOLDERS]
    aside = tempfile.mkdtemp(prefix="aside-", dir=os.environ["KERNELWRIGHT_WORK"])
    try:
        _move(kept, aside)
        yield
    except BaseException:
        for folder in kept:
            shutil.rmtree(folder, ignore_errors=True)
        _move([os.path.join(aside, os.path.basename(folder)) for folder in kept], os.path.dirname(kept[0]))
        raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
        clear_caches()


def _move(folders: list[str], into: str) -> None:
    """Moves the folders that exist. Another process that compiles for this task may create one at any time."""
    for folder in folders:
        with suppress(OSError):
            os.rename(folder, os.path.join(into, os.path.basename(folder)))
