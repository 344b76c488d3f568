"""Leaving out `torch.nn.Module.__call__` is no gain: both sides are called alike, and what runs no hooks is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from evaluator.client import Referee
from evaluator.roles import dispatch
from evaluator.roles.protocol import ContractError
from evaluator.sources import CandidateSource, TaskSource
from evaluator.verdict import Verdict

pytestmark = pytest.mark.attacks

_FOLDER = Path(__file__).parent
_TASK, _BASE = ((_FOLDER / f"module_dispatch_{part}.py").read_text() for part in ("task", "candidate"))
_HONEST = """
class ModelNew(Base):
    def __call__(self, x):
        if hooked(self):
            return super().__call__(x)
        return self.forward(x)

def hooked(one):
    kinds = "forward_pre", "forward"
    hooks = nn.modules.module
    return any(getattr(one, f"_{kind}_hooks") or getattr(hooks, f"_global_{kind}_hooks") for kind in kinds)
"""
SKIPS = {
    "its class calls itself": """
class ModelNew(Base):
    def __call__(self, x):
        return self.forward(x)
""",
    "what torch's call calls": """
class ModelNew(Base):
    def _call_impl(self, x):
        return self.forward(x)
""",
    "an attribute of the object": """
class ModelNew(Base):
    def __init__(self):
        super().__init__()
        self._call_impl = self.forward
""",
    "not the compiler's": """
class ModelNew(Base):
    def __init__(self):
        super().__init__()
        self._compiled_call_impl = self.forward
""",
    "another class later": """
class Quick(Base):
    def __call__(self, x):
        return self.forward(x)

class ModelNew(Base):
    def __init__(self):
        super().__init__()
        self.__class__ = Quick
""",
    "a class of classes": """
class Quickly(type):
    def __new__(kind, name, bases, names):
        return super().__new__(kind, name, bases, {**names, "__call__": names["forward"]})

    def __getattribute__(cls, name):
        return nn.Module.__call__ if name == "__call__" else super().__getattribute__(name)

class ModelNew(Base, metaclass=Quickly):
    def forward(self, x):
        return super().forward(x)
""",
    "in the first call": """
class ModelNew(Base):
    def forward(self, x):
        ModelNew.__call__ = Base.forward
        return super().forward(x)
""",
    "for all modules": """
class ModelNew(Base):
    pass

nn.Module.__call__ = lambda self, *given: self.forward(*given)
""",
}


def _judged(referee: Referee, candidate: str, *, timed: bool = True) -> Verdict:
    return referee.evaluate(
        TaskSource("case", _TASK),
        CandidateSource(_BASE + candidate),
        splits=["visible" if timed else "adversarial"],
        deadline_s=240.0,
    )


@pytest.mark.parametrize("how", SKIPS)
def test_what_runs_no_hooks_is_refused(referee: Referee, how: str) -> None:
    verdict = _judged(referee, SKIPS[how], timed=False)
    assert verdict.verdict == "contract_violation", verdict.reason
    assert "hooks registered on it do not run" in verdict.reason


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize(
    "candidate",
    [
        _HONEST,
        """
class ModelNew(Base):
    def __init__(self):
        super().__init__()
        self.compile()
""",
        """
class ModelNew(Base):
    @classmethod
    def from_reference(cls, reference):
        return torch.compile(reference)
""",
    ],
)
def test_what_runs_them_is_accepted(referee: Referee, candidate: str) -> None:
    """Timed, since code that is compiled meanwhile must not hold a hook of the harness."""
    verdict = _judged(referee, candidate)
    assert verdict.verdict == "accepted", verdict.reason


def test_a_reference_that_runs_no_hooks_is_refused(referee: Referee) -> None:
    own = "    def __call__(self, x):\n        return self.forward(x)\n"
    task = _TASK.replace("    def forward", own + "    def forward")
    report = referee.lint(TaskSource("case", task))
    assert report.verdict == "task_rejected"
    assert "Model replaces __call__" in report.reason, report.reason


def _made(text: str) -> Any:
    names: dict[str, Any] = {}
    exec(_BASE + text, names)
    return names["ModelNew"]().eval()


def test_a_call_of_its_own_saves_nothing() -> None:
    """Torch's own call is made as often as for a module that leaves it as it is; a delivered module is called as its user calls it."""

    def dispatches(call: Callable[..., Any]) -> int:
        seen: list[int] = []
        handle = nn.modules.module.register_module_forward_pre_hook(lambda *_: seen.append(1))
        try:
            call(torch.randn(2, 32))
        finally:
            handle.remove()
        return len(seen)

    plain, quick = _made("\nclass ModelNew(Base):\n    pass\n"), _made(SKIPS["its class calls itself"])
    assert [dispatches(dispatch.caller(one, own=False)) for one in (plain, quick)] == [1, 1]
    assert dispatches(dispatch.caller(quick, own=True)) == 0
    late = dispatch.caller(plain, own=False)
    plain._call_impl = plain.forward
    assert dispatches(late) == 1


def test_the_last_kind_of_hook_is_looked_at_as_well() -> None:
    for kind in ('"forward_pre"', '"forward"'):
        text = _HONEST.replace('"forward_pre", "forward"', f"({kind},)")
        assert text != _HONEST
        with pytest.raises(ContractError, match="ModelNew replaces __call__"):
            dispatch.refuse_without_hooks(_made(text), (torch.randn(2, 32),), {})
    honest = _made(_HONEST)
    assert set(dispatch.refuse_without_hooks(honest, (torch.randn(2, 32),), {})) == {"__call__"}
