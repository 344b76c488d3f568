"""Compiling past what is kept on the disk: a damaged file there would cost a baseline, and every candidate would look better.

Inductor makes a library again that was cut off, but neither a file of Python that was, nor a library of zeros.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress

#: Where Inductor and Triton are told to keep what they make.
_FOLDERS = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")


@contextmanager
def past_what_is_kept() -> Iterator[None]:
    """Compilers find nothing and begin anew. What they make takes the place of all that was kept, unless something is raised.

    Which of the files is damaged cannot be told, and their names depend on their folder: so they go together.
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
    """Moves those that there are. Another process that compiles for this task may begin such a folder at any time."""
    for folder in folders:
        with suppress(OSError):
            os.rename(folder, os.path.join(into, os.path.basename(folder)))
