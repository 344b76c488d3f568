"""What tests of kernels on a GPU begin with."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture
def strict_float32() -> None:
    """No TF32, and no decision that an earlier test's estimates left."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    from agent.kernels.gpu import calls

    for one in vars(calls).values():
        getattr(one, "known", {}).clear()
