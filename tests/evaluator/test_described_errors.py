"""What kind of failure an exception in a sandboxed process is."""

from __future__ import annotations

import pytest

from evaluator.roles import protocol
from evaluator.roles.runner import _describe


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("CUDA error: out of memory", protocol.MEMORY),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", protocol.MEMORY),
        ("cuDNN error: CUDNN_STATUS_ALLOC_FAILED", protocol.MEMORY),
        ("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm`", protocol.RUNTIME),
        ("CUDA error: an illegal memory access was encountered", protocol.RUNTIME),
    ],
)
def test_a_library_without_memory_for_its_handle_has_run_out_of_memory(message: str, kind: int) -> None:
    """On a GPU that referees share, another one may have the memory: it is no fault of the candidate."""
    assert _describe(RuntimeError(message))[0] == kind
