"""What the compiler proposes: the code that it generates, and no mode that is a baseline."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agent.candidates import Candidate
from agent.kernels import writing
from agent.proposers.compiler import CompilerProposer
from agent.proposers.human import HumanProposer
from agent.proposing import ProposalContext
from agent.stores.folder import FolderStore
from evaluator.description import Description
from evaluator.sources import TaskSource
from tests.agent.compiler.extraction import task_text
from tests.agent.scripted_referee import ScriptedReferee
from tests.variants import some

CAPTURE = {
    "module": "from torch._inductor.select_algorithm import extern_kernels\n\n\ndef call(args):\n    return (extern_kernels.mm(args[0], args[1], out=args[2]),)\n",
    "tensors": ["x"], "others": [], "state": ["weight", "bias"], "dimensions": [2, 2, 1], "sizes": [], "shapes": [], "strides": [],
    "dtypes": ["torch.float32"] * 3, "devices": ["cpu"] * 3,
    "conditions": ["True"], "result": "out[0]", "written": [], "library": "", "backward": None,
}  # fmt: skip


@pytest.fixture
def small_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that takes no time to parse, for what does not depend on its text."""
    text = "\n\ndef library_mm(a, b, out):\n    return torch.mm(a, b, out=out)\n"
    monkeypatch.setattr(writing, "kernels", lambda named: text)


def proposed(
    folder: Path,
    proposer: CompilerProposer | HumanProposer,
    device: str,
    kept: dict[str, Any],
    told: Description | None = None,
    shapes: dict[str, list[dict[str, int]]] | None = None,
) -> list[Candidate]:
    """What is proposed where the store has kept what the capture program said."""
    store = FolderStore(folder)
    store.finish_step(f"compiler.capture.{device}", kept)
    task = TaskSource("t", task_text("matmul_bias_relu"))
    referee = ScriptedReferee(lambda label, phase: pytest.fail(f"{label} was judged in {phase}"))
    context = ProposalContext(task, told or Description(), device, referee, store, shapes=shapes)  # type: ignore[arg-type]
    return list(proposer.propose(context))


@pytest.mark.parametrize(("device", "label"), [("cuda", "inductor Triton"), ("cpu", "inductor C++")])
def test_modes_of_the_compiler_are_no_candidates(tmp_path: Path, device: str, label: str) -> None:
    """A baseline that is judged as a candidate ends at 1.0x: it took 50 of the first 84 seconds of a job on a GPU."""
    found = proposed(tmp_path, CompilerProposer(), device, {"capture": json.dumps(CAPTURE)})
    assert [candidate.label for candidate in found] == [label]
    assert "extern_kernels.mm(" in found[0].source


def test_a_module_whose_code_does_not_stand_alone_has_no_candidate(tmp_path: Path) -> None:
    assert proposed(tmp_path, CompilerProposer(), "cuda", {"reason": "it draws random numbers"}) == []


def test_on_a_gpu_the_library_s_products_stand_in_the_compiler_s_code(tmp_path: Path) -> None:
    found = proposed(tmp_path, HumanProposer(), "cuda", {"capture": json.dumps(CAPTURE)})
    assert [(candidate.label, candidate.origin) for candidate in found] == [("library kernels", "human")]
    source = found[0].source
    compile(source, "candidate.py", "exec")
    assert "library_mm(args[0], args[1], out=args[2])" in source
    assert "def product(" in source
    assert "def library_convolution(" not in source  # what is not called is left out
    assert "class ModelNew(Model):" in source


@pytest.mark.usefixtures("small_library")
def test_code_for_the_module_s_own_sizes_comes_before_code_for_any(tmp_path: Path) -> None:
    own = {**CAPTURE, "conditions": ["s0 == 4096"]}
    capture = json.dumps({**CAPTURE, "own": own})
    found = proposed(tmp_path, HumanProposer(), "cuda", {"capture": capture})
    assert [candidate.label for candidate in found] == ["library kernels", "library kernels, any size"]
    assert ["s0 == 4096" in candidate.source for candidate in found] == [True, False]


DIMS = {name: {"min": 1, "max": 99, "default": size} for name, size in (("rows", 64), ("cols", 8))}
OF_TRAFFIC = Description(
    dims={**DIMS, "rows": {"min": 1, "max": 99, "default": 3}},
    traffic=(
        {"dims": {"rows": 3, "cols": 8}, "weight": 1.0},
        {"dims": {"rows": 64, "cols": 8}, "weight": 2.0},
    ),
)
BOTH = ["library kernels", "library kernels, any size"]


@pytest.mark.usefixtures("small_library")
@pytest.mark.parametrize("told", some([OF_TRAFFIC, Description(dims=DIMS)], 3), ids=["traffic", "dimensions"])
@pytest.mark.parametrize(
    ("held_out", "labels"),
    [
        ([{"rows": 64, "cols": 8}], BOTH),
        ([{"rows": 64}], BOTH),  # a size that is not named is the default
        (None, BOTH),  # the referee draws them
        ([{"rows": 65, "cols": 8}], ["library kernels"]),
    ],
)
def test_code_for_the_module_s_own_sizes_is_only_proposed_where_they_are_judged(
    tmp_path: Path, held_out: list[dict[str, int]] | None, labels: list[str], told: Description
) -> None:
    own = {**CAPTURE, "conditions": ["s0 == 4096"]}
    capture = json.dumps({**CAPTURE, "own": own})
    shapes = {"visible": [{"rows": 9}], "validation": [{"rows": 10}]}
    if held_out is not None:
        shapes["held_out"] = held_out
    found = proposed(tmp_path, HumanProposer(), "cuda", {"capture": capture}, told, shapes)
    assert [candidate.label for candidate in found] == labels
    assert ("s0 == 4096" in found[0].source) == (len(labels) == 2)


@pytest.mark.parametrize("capture", ["[]", "3", "not JSON", '{"own": 3, "module": "x"}'])
def test_what_an_untrusted_program_wrote_is_checked(tmp_path: Path, capture: str) -> None:
    assert proposed(tmp_path, HumanProposer(), "cuda", {"capture": capture}) == []
    assert [event["data"]["label"] for event in FolderStore(tmp_path).events()] == ["library kernels"]


def test_where_nothing_is_multiplied_the_library_has_no_such_candidate(tmp_path: Path) -> None:
    plain = {**CAPTURE, "module": "def call(args):\n    return (args[0],)\n"}
    assert proposed(tmp_path, HumanProposer(), "cuda", {"capture": json.dumps(plain)}) == []


@pytest.mark.usefixtures("small_library")
def test_a_fault_of_the_rewrite_is_told(tmp_path: Path) -> None:
    capture = {**CAPTURE, "library_fault": "ValueError: planted"}
    found = proposed(tmp_path, HumanProposer(), "cuda", {"capture": json.dumps(capture)})
    assert [candidate.label for candidate in found] == ["library kernels"]
    told = [event["data"].get("skipped") for event in FolderStore(tmp_path).events()]
    assert told == ["some operations stay as they are: ValueError: planted"]
