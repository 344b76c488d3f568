"""What a program loads that imports `kernelwright`."""

from __future__ import annotations

import subprocess
import sys

import pytest

import kernelwright
from tests.services.service import ROOT


@pytest.mark.parametrize("module", ["kernelwright", "kernelwright.client"])
def test_neither_torch_nor_the_server_is_loaded(module: str) -> None:
    program = (
        f"import sys, {module}\n"
        "print([one for one in ('torch', 'fastapi', 'sqlalchemy', 'celery', 'evaluator') if one in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert done.stdout.strip() == "[]"


def test_names_are_there_when_they_are_used() -> None:
    from evaluator.capture.recording import capture

    assert kernelwright.capture is capture
    assert set(kernelwright.__all__) <= set(dir(kernelwright))
    with pytest.raises(AttributeError, match="no attribute 'capture_all'"):
        kernelwright.capture_all  # noqa: B018
