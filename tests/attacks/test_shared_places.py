"""What candidates could share is shared by nobody: build folders, temporary files, shared memory."""

from __future__ import annotations

import pytest

from evaluator.client import Referee
from evaluator.sources import CandidateSource
from evaluator.verdict import Verdict
from tests.attacks.test_candidates import SHAPES, TASK

pytestmark = [pytest.mark.attacks, pytest.mark.timeout(240)]

_MODEL = """
import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.LayerNorm(cols)

    def forward(self, x):
        return {result}
"""
_HONEST = "F.relu(self.norm(x))"
_LEAVES = """
import os

FOLDERS = ("/tmp", "/dev/shm", ".", os.environ["HOME"], os.environ["KERNELWRIGHT_WORK"], "/.kernelwright/store")
for _folder in FOLDERS:
    try:
        with open(os.path.join(_folder, "kernelwright-left-behind"), "w") as _file:
            _file.write("x")
    except OSError:
        continue
"""
_FINDS = """
import os

FOUND = []
for _root in ("/tmp", "/dev/shm", ".", os.environ["HOME"], os.environ["KERNELWRIGHT_WORK"], "/.kernelwright"):
    for _folder, _, _names in os.walk(_root):
        FOUND += [os.path.join(_folder, n) for n in _names if n == "kernelwright-left-behind"]
if FOUND:
    raise RuntimeError(f"found {FOUND}")
"""
_EXTENSION = '''
import ctypes

from torch.utils.cpp_extension import load_inline

LIBRARY = load_inline(
    "shared_name",
    cpp_sources="""extern "C" int answer() { return 42; }""",
    is_python_module=False,
    no_implicit_headers=True,
)
if ctypes.CDLL(LIBRARY).answer() != 42:
    raise RuntimeError("this is not what was compiled")
'''
_POISON = """
import os
import shutil

SOURCES = [os.path.join(f, n) for f, _, names in os.walk("/.kernelwright") for n in names if n.endswith(".so")]
for _path in [*SOURCES, LIBRARY]:
    for _root, _folders, _ in os.walk(os.path.dirname(os.path.dirname(_path))):
        for _folder in [*_folders, "planted"]:
            target = os.path.join(_root, _folder, "shared_name.so")
            try:
                os.makedirs(os.path.dirname(target), exist_ok=True)
                with open(target, "wb") as _file:
                    _file.write(b"poison")
            except OSError:
                continue
"""


def judged(referee: Referee, source: str, label: str) -> Verdict:
    return referee.evaluate(
        TASK, CandidateSource(source, "external", label), shapes=SHAPES, splits=["adversarial"]
    )


def test_what_one_candidate_leaves_the_next_does_not_find(referee: Referee) -> None:
    leaves = judged(referee, _LEAVES + _MODEL.replace("{result}", _HONEST), "leaves")
    assert leaves.verdict == "accepted", (leaves.reason, leaves.detail)
    finds = judged(referee, _FINDS + _MODEL.replace("{result}", _HONEST), "finds")
    assert finds.verdict == "accepted", (finds.reason, finds.detail)


def test_the_search_would_find_what_is_there(referee: Referee) -> None:
    both = judged(referee, _LEAVES + _FINDS + _MODEL.replace("{result}", _HONEST), "both")
    assert both.verdict == "runtime_error" and "found" in both.reason


def test_a_poisoned_build_folder_is_nobody_else_s(referee: Referee) -> None:
    poisoner = judged(referee, _EXTENSION + _POISON + _MODEL.replace("{result}", _HONEST), "poisoner")
    assert poisoner.verdict != "not_judged", poisoner.reason
    after = judged(referee, _EXTENSION + _MODEL.replace("{result}", _HONEST), "after")
    assert after.verdict == "accepted", (after.reason, after.detail)
    again = judged(referee, _EXTENSION + "\n# again\n" + _MODEL.replace("{result}", _HONEST), "again")
    assert again.verdict == "accepted", (again.reason, again.detail)
