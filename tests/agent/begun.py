"""The first steps of every compilation, done when this is imported: processes that fork from one which has imported it need not do them again.

Two of the three seconds in which a small graph becomes code: trying the processor's instructions with the C++ compiler,
tracing the compiler's patterns, and imports.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from unittest import mock

from torch._inductor import config, cpu_vec_isa

from evaluator.roles import forkserver

# Nothing of the folder in which this is done is left: each program has one of its own.
with (
    tempfile.TemporaryDirectory() as _folder,
    mock.patch.dict(os.environ, TORCHINDUCTOR_CACHE_DIR=_folder),
    warnings.catch_warnings(action="ignore"),
):
    # Only features beyond whole sets are tried, as the sandbox does: the tests' own kernels show that the set is there.
    with config.patch({"cpp.vec_isa_ok": True}):
        assert cpu_vec_isa.valid_vec_isa_list()
    forkserver._begin_compiling()
