"""Forward and backward: every gradient is checked against float64, and right outputs buy nothing."""

from __future__ import annotations

import pytest

from evaluator.client import Referee
from tests.evaluator.judging import candidate, judge, replaced, rules, task

TASK = task("""
    DIRECTION = "forward_backward"

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(12, 20))
            self.gain = nn.Parameter(torch.ones(12))
            self.frozen = nn.Parameter(torch.randn(12), requires_grad=False)

        def forward(self, x, index):
            hidden = torch.tanh(F.linear(x, self.weight)) * self.gain + self.frozen
            return hidden[index], x.reshape(-1), index + 1

    def get_inputs():
        return [torch.randn(16, 20), torch.randint(0, 16, (9,))]

    def get_init_inputs():
        return []
    """)

#: The same module around its own autograd.Function, whose backward is complete.
OWN_BACKWARD = """
    class Squash(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight, gain):
            squashed = torch.tanh(x @ weight.t())
            ctx.save_for_backward(x, weight, gain, squashed)
            return squashed * gain

        @staticmethod
        def backward(ctx, upstream):
            x, weight, gain, squashed = ctx.saved_tensors
            inner = upstream * gain * (1 - squashed * squashed)
            return inner @ weight, inner.t() @ x, (upstream * squashed).sum(0)

    class ModelNew(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(12, 20))
            self.gain = nn.Parameter(torch.ones(12))
            self.frozen = nn.Parameter(torch.randn(12), requires_grad=False)

        def forward(self, x, index):
            hidden = Squash.apply(x, self.weight, self.gain) + self.frozen
            return hidden[index], x.reshape(-1), index + 1
    """


def _changed(*changes: tuple[str, str]) -> str:
    text = OWN_BACKWARD
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    return text


def test_an_own_backward_that_is_right_is_accepted(referee: Referee) -> None:
    verdict = judge(referee, TASK, candidate(OWN_BACKWARD))
    assert verdict.verdict == "accepted", (verdict.reason, verdict.detail)
    assert "no_float64_oracle" not in rules(verdict)


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("return inner @ weight, ", "return torch.zeros_like(x), ", "gradient of input 1"),
        ("return inner @ weight, ", "return None, ", "gradient of input 1"),
        ("inner.t() @ x", "(inner.t() @ x) * (1 + 1e-3)", "gradient of parameter 'weight'"),
        ("inner.t() @ x", "(inner.bfloat16().t() @ x.bfloat16()).float()", "gradient of parameter 'weight'"),
        ("(upstream * squashed).sum(0)", "(upstream * squashed)[::2].sum(0)", "gradient of parameter 'gain'"),
        ("upstream * gain *", "torch.ones_like(upstream) * gain *", "gradient of input 1"),
        ("(1 - squashed * squashed)", "(1 - squashed)", "gradient of input 1"),
    ],
)
def test_right_outputs_with_a_wrong_gradient_are_incorrect(
    old: str, new: str, named: str, referee: Referee
) -> None:
    verdict = judge(referee, TASK, candidate(_changed((old, new))))
    assert verdict.verdict == "incorrect", (verdict.reason, verdict.detail)
    assert named in verdict.reason


def test_gradients_of_the_call_before_are_incorrect(referee: Referee) -> None:
    """The forward is honest; the backward hands out what it computed once."""
    stale = _changed(
        ("def backward(ctx, upstream):", "def backward(ctx, upstream, kept={}):"),
        (
            "return inner @ weight, inner.t() @ x,",
            "return kept.setdefault(x.shape, inner @ weight), inner.t() @ x,",
        ),
    )
    verdict = judge(referee, TASK, candidate(stale))
    assert verdict.verdict == "incorrect", (verdict.reason, verdict.detail)
    assert "gradient of input 1" in verdict.reason


def test_an_output_without_a_gradient_breaks_the_contract(referee: Referee) -> None:
    verdict = judge(referee, TASK, replaced(TASK, ("return hidden[index]", "return hidden.detach()[index]")))
    assert verdict.verdict == "contract_violation", verdict.reason
    assert "autograd.Function" in verdict.reason


def test_packed_weights_must_keep_their_names(referee: Referee) -> None:
    packed = """
        class ModelNew(nn.Module):
            def __init__(self, weight, gain, frozen):
                super().__init__()
                self.NAME = nn.Parameter(weight.SHAPE.clone())
                self.gain = nn.Parameter(gain.clone())
                self.frozen = frozen

            @classmethod
            def from_reference(cls, reference):
                return cls(reference.weight.detach(), reference.gain.detach(), reference.frozen)

            def forward(self, x, index):
                hidden = torch.tanh(x @ self.NAME.T_OF) * self.gain + self.frozen
                return hidden[index], x.reshape(-1), index + 1
        """

    def variant(name: str, shape: str, transposed: str) -> str:
        return packed.replace("NAME", name).replace("SHAPE", shape).replace("T_OF", transposed)

    kept = judge(referee, TASK, candidate(variant("weight", "contiguous()", "t()")))
    assert kept.verdict == "accepted", (kept.reason, kept.detail)
    renamed = judge(referee, TASK, candidate(variant("packed", "t()", "contiguous()")))
    assert renamed.verdict == "contract_violation"
    assert "no parameter 'weight'" in renamed.reason
    reshaped = judge(referee, TASK, candidate(variant("weight", "t()", "contiguous()")))
    assert reshaped.verdict == "contract_violation"
    assert "shape [20, 12]" in reshaped.reason


def test_complex_and_low_precision_gradients(referee: Referee) -> None:
    source = task("""
        DIRECTION = "forward_backward"

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = nn.Parameter(torch.randn(32, dtype=torch.complex64))

            def forward(self, z, h):
                return z * self.weight, F.gelu(h)

        def get_inputs():
            return [torch.randn(8, 32, dtype=torch.complex64), torch.randn(8, 32, dtype=torch.bfloat16)]

        def get_init_inputs():
            return []
        """)
    honest = judge(referee, source, replaced(source, ("z * self.weight", "self.weight * z")))
    assert honest.verdict == "accepted", (honest.reason, honest.detail)
    hook = "h.register_hook(lambda g: g * 1.05); return z * self.weight"
    wrong = judge(referee, source, replaced(source, ("return z * self.weight", hook)))
    assert wrong.verdict == "incorrect", wrong.reason
    assert "gradient of input 2" in wrong.reason


def test_grad_mode_is_off_where_a_task_is_forward_only(referee: Referee) -> None:
    source = task("""
        class Model(nn.Module):
            def forward(self, x):
                return x * 2.0

        def get_inputs():
            return [torch.randn(4, 8)]

        def get_init_inputs():
            return []
        """)
    asserts = ("return x * 2.0", "assert not torch.is_grad_enabled(); return x * 2.0")
    assert judge(referee, source, replaced(source, asserts)).verdict == "accepted"


def test_a_task_without_anything_to_differentiate_is_refused(referee: Referee) -> None:
    source = task("""
        DIRECTION = "forward_backward"

        class Model(nn.Module):
            def forward(self, x):
                return x + 1

        def get_inputs():
            return [torch.randint(0, 9, (4,))]

        def get_init_inputs():
            return []
        """)
    description = referee.describe(source)
    assert description.verdict == "task_rejected"
    assert "no output depends on a floating input" in description.reason
    odd = task(source.source.split("nn\n", 1)[1].replace("forward_backward", "sideways"))
    assert "sideways" in referee.describe(odd).reason
