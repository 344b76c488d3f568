"""Reference problems as data: one file per task, in the KernelBench file format with `DIMS` added.

Importing this package never imports a task. Task files are read as text (`kernelbench_tasks.catalog`) and run only in
the referee's sandbox.
"""

from __future__ import annotations

from kernelbench_tasks.dims import Choice, Dim, Dims, check_dims

__all__ = ["Choice", "Dim", "Dims", "check_dims"]
