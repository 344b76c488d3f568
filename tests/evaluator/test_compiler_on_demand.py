"""On a CPU processes have torch's compiler once something is timed, both sides of a pair alike, and not before."""

from __future__ import annotations

from pathlib import Path

import pytest

from evaluator.referee.judging.core import RefereeCore
from evaluator.request import Request
from tests.evaluator.judging import replaced, task

_MODULE = """
class Model(nn.Module):
    def forward(self, x):
        return x + 1

def get_inputs():
    return [torch.randn(3)]

def get_init_inputs():
    return []
"""
_LOOK = "import sys\nprint('torch._inductor.compile_fx' in sys.modules)"


@pytest.mark.slow
def test_the_compiler_comes_with_the_first_thing_that_is_timed(tmp_path: Path) -> None:
    core = RefereeCore("cpu", tmp_path, "landlock")
    try:
        source = task(_MODULE)
        wrong = replaced(source, ("x + 1", "x + 2"))

        def judge(split: str) -> str:
            request = Request(source, wrong, "screen", (split,), {split: [{}]}, 60.0)
            return core.evaluate(request, lambda *_: None).verdict

        def children_have_it() -> str:
            return core.run_tool(_LOOK, {}, deadline_s=30.0).stdout.strip()

        assert judge("adversarial") == "incorrect"
        assert children_have_it() == "False"
        before = core.session(source)
        assert judge("visible") == "incorrect"
        assert children_have_it() == "True"
        assert core.session(source) is not before and before.process.dead
        before = core.session(source)
        assert judge("adversarial") == judge("visible") == "incorrect"
        assert core.session(source) is before
        # Something else, such as a candidate that compiles itself, loaded the compiler after this session was opened.
        before.has_compiler = False
        assert judge("visible") == "incorrect"
        assert before.process.dead
    finally:
        core.close()
