"""Answers that are looked up by a few elements of the inputs are wrong where the others change."""

from __future__ import annotations

import pytest

from evaluator.client import Referee
from tests.evaluator.judging import judge, replaced, task

_TASK = """
from kernelbench_tasks import Dim

DIMS = {"rows": Dim(1, 512, default=48)}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(64, 96)

    def forward(self, x):
        return F.gelu(self.a(x))


def get_inputs(rows=48):
    return [torch.randn(rows, 64)]


def get_init_inputs():
    return []
"""
_RESULT = "        return F.gelu(self.a(x))"


@pytest.mark.parametrize(
    "key",
    [
        "x.flatten()[:: x.numel() // 16].tolist()",
        "x[0, :8].tolist()",
        "[x[0, 0].item(), x[-1, -1].item()]",
        "x[:1].sum().item()",
    ],
)
def test_a_key_of_a_few_elements(referee: Referee, key: str) -> None:
    kept = f"""        key = str((x.shape, {key}))
        known = self.__dict__.setdefault("known", {{}})
        if key not in known:
            known[key] = F.gelu(self.a(x))
        return known[key].clone()"""
    source = task(_TASK)
    shapes = [{"rows": rows} for rows in range(33, 49)]
    verdict = judge(referee, source, replaced(source, (_RESULT, kept)), shapes)
    assert verdict.verdict in ("incorrect", "cheating"), verdict.reason
