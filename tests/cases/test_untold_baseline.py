"""A compiled baseline for which nothing was compiled is none, and the verdict says what the speedup is against."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from evaluator.roles import variants
from evaluator.sources import CandidateSource, TaskSource
from evaluator.verdict import Verdict, compiled_words
from tests.evaluator.few_baselines import QuickReferee

pytestmark = [pytest.mark.attacks, pytest.mark.alone]

_FOLDER = Path(__file__).parent
_TASK, _CANDIDATE = ((_FOLDER / f"untold_baseline_{part}.py").read_text() for part in ("task", "candidate"))
_OFF = "    @torch._dynamo.disable\n"
_EAGER_ONLY = "against eager only, since torch.compile compiled nothing of it,"


def _judged(quick_referee: QuickReferee, task: str, candidate: str = _CANDIDATE) -> Verdict:
    verdict = quick_referee.evaluate(
        TaskSource("case", task),
        CandidateSource(candidate),
        splits=["visible"],
        shapes={"visible": [{"rows": 512}]},
        deadline_s=240.0,
    )
    assert verdict.verdict == "accepted", verdict.reason
    return verdict


def _baselines(verdict: Verdict) -> set[str]:
    return {name.partition("/")[0] for shape in verdict.shapes for name in shape.baselines}


@pytest.mark.parametrize(
    ("off", "compiles", "judge"),
    [
        (_OFF, False, "quick_referee"),
        pytest.param(_OFF, True, "quick_referee", marks=pytest.mark.slow),
        pytest.param(_OFF, True, "referee", marks=pytest.mark.slow),  # with every compiled baseline
        pytest.param("    @torch.compiler.disable\n", True, "quick_referee", marks=pytest.mark.slow),
    ],
)
def test_where_compilation_is_off_the_speedup_is_against_eager_only(
    request: pytest.FixtureRequest, off: str, compiles: bool, judge: str
) -> None:
    # The file gains by compiling what the task keeps from the compiler. What the baseline is does not depend on that.
    candidate = _CANDIDATE if compiles else _CANDIDATE.replace("torch.compile(self._f)", "self._f")
    verdict = _judged(request.getfixturevalue(judge), _TASK.replace(_OFF, off), candidate)
    assert _EAGER_ONLY in verdict.reason
    assert _baselines(verdict) == {"eager"}
    (told,) = (one for one in verdict.findings if one.rule == "baseline_unavailable")
    assert "compile_default" in told.evidence and "compiled nothing of it" in told.evidence


@pytest.mark.slow
def test_a_part_that_is_compiled_makes_a_baseline(quick_referee: QuickReferee) -> None:
    """One operation is kept from the compiler; what stands around it is compiled."""
    part = "\n\n@torch._dynamo.disable\ndef part(y):\n    return y * 0.5\n\n\nclass Model("
    task = _TASK.replace(_OFF, "").replace("class Model(", part).replace("y = y * 0.5 + x", "y = part(y) + x")
    verdict = _judged(quick_referee, task)
    assert "compile_default" in _baselines(verdict)
    line = 1 + task[: task.index("y = part(y)")].count("\n")
    assert f"against the best baseline (compile_default: 1 graph break (line {line}: " in verdict.reason
    made = next(row for row in verdict.shapes[0].baselines.values() if "graphs" in row)
    assert made["graphs"] == 2 and made["graph_breaks"] == 1 and made["kernels"] > 0
    assert compiled_words(shape.baselines for shape in verdict.shapes)[0].endswith("kernels generated")


def test_a_module_without_kernels_of_its_own_has_a_compiled_baseline(quick_referee: QuickReferee) -> None:
    """All of it is one call of a library: the compiler writes code around that, and no kernel."""
    task = """
import torch
from torch import nn
from kernelbench_tasks import Choice
DIMS = {"rows": Choice(256, 512)}
class Model(nn.Module):
    def forward(self, x, y):
        return x @ y
def get_inputs(rows=512):
    return [torch.randn(rows, 64), torch.randn(64, 96)]
def get_init_inputs():
    return []
"""
    verdict = _judged(quick_referee, task, task.replace("class Model(", "class ModelNew("))
    assert "compile_default" in _baselines(verdict)
    told = "compile_default: one graph, no kernel generated, only library calls"
    assert (
        told in compiled_words(shape.baselines for shape in verdict.shapes)
        and "against the best baseline at" in verdict.reason
    )


def test_what_is_compiled_a_second_time_in_one_process_is_no_less_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Then the compiler finds its own code, takes no graph and loads nothing."""
    from torch._dynamo.utils import counters

    monkeypatch.setattr(variants, "_graphs_before", [])
    made: list[object] = []

    def make(compiles: bool) -> Callable[..., None]:
        def run(*_: object) -> None:
            made.append(None)
            if compiles:
                counters["stats"]["unique_graphs"] += 1

        return run

    monkeypatch.setattr(variants, "made", {})

    def prepare() -> str:
        return variants.prepare(
            SimpleNamespace(model=None), "compile_default/1t", "compile_default", 1, torch.device("cpu")
        )

    monkeypatch.setattr(variants, "_make", make(False))
    for _ in range(2):
        with pytest.raises(variants.NothingCompiled, match="compiled nothing of it"):
            prepare()
    monkeypatch.setattr(variants, "_make", make(True))
    assert prepare() == ""
    monkeypatch.setattr(variants, "_make", make(False))
    assert prepare() == "" and len(made) == 4
