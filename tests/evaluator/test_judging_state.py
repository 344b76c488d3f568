"""Train mode, repeats, a task's own oracle and precision tiers: what a candidate owes beyond one output of one call."""

from __future__ import annotations

import pytest

from evaluator.client import Referee
from evaluator.referee.judging import evaluation
from evaluator.referee.judging.core import RefereeCore
from evaluator.request import Request
from tests.evaluator.judging import candidate, judge, replaced, rules, task

# -- train mode --------------------------------------------------------------------------------------------------

TRAINED = task("""
    TRAINING = True

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(20)
            self.register_buffer("average", torch.zeros(20))

        def forward(self, x):
            assert self.training
            self.average.mul_(0.9).add_(0.1 * x.detach().mean(0))
            return torch.relu(self.norm(x)) + self.average

    def get_inputs():
        return [torch.randn(32, 20)]

    def get_init_inputs():
        return []
    """)

_BY_HAND = """
    class ModelNew(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(20)
            self.register_buffer("average", torch.zeros(20))

        def forward(self, x):
            mean, variance = x.mean(0), x.var(0, unbiased=False)
            norm = self.norm
            with torch.no_grad():
                norm.running_mean.lerp_(mean, 0.1)
                norm.running_var.lerp_(variance * (32 / 31), 0.1)
                norm.num_batches_tracked.add_(1)
                self.average.lerp_(mean, 0.1)
            normed = (x - mean) * torch.rsqrt(variance + norm.eps)
            return torch.relu(normed * norm.weight + norm.bias) + self.average
    """


def test_running_statistics_that_are_kept_are_accepted(referee: Referee) -> None:
    verdict = judge(referee, TRAINED, candidate(_BY_HAND))
    assert verdict.verdict == "accepted", (verdict.reason, verdict.detail)
    rebound = _BY_HAND.replace("self.average.lerp_(mean, 0.1)", "self.average = self.average.lerp(mean, 0.1)")
    verdict = judge(referee, TRAINED, candidate(rebound))
    assert verdict.verdict == "accepted", (verdict.reason, verdict.detail)


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("norm.running_mean.lerp_(mean, 0.1)", "pass", "'norm.running_mean'"),
        ("variance * (32 / 31)", "variance", "'norm.running_var'"),
        ("norm.num_batches_tracked.add_(1)", "pass", "'norm.num_batches_tracked'"),
    ],
)
def test_running_statistics_that_are_not_kept_are_incorrect(
    old: str, new: str, named: str, referee: Referee
) -> None:
    assert old in _BY_HAND
    verdict = judge(referee, TRAINED, candidate(_BY_HAND.replace(old, new)))
    assert verdict.verdict == "incorrect", (verdict.reason, verdict.detail)
    assert f"buffer {named} after the call" in verdict.reason


def test_train_mode_and_gradients_together(referee: Referee) -> None:
    _, body = TRAINED.source.split("nn\n", 1)
    both = task('DIRECTION = "forward_backward"\n' + body)
    honest = judge(referee, both, candidate(_BY_HAND))
    assert honest.verdict == "accepted", (honest.reason, honest.detail)
    # The mean of the batch is part of the derivative.
    fixed = judge(referee, both, candidate(_BY_HAND.replace("(x - mean)", "(x - mean.detach())")))
    assert fixed.verdict == "incorrect", fixed.reason
    assert "gradient of input 1" in fixed.reason


def test_a_random_reference_is_refused(referee: Referee) -> None:
    source = """
        TRAINING = True

        class Model(nn.Module):
            def forward(self, x):
                return F.dropout(x, 0.3, self.training)

        def get_inputs():
            return [torch.randn(16, 40)]

        def get_init_inputs():
            return []
        """
    description = referee.describe(task(source))
    assert description.verdict == "task_rejected"
    assert "different results for the same inputs" in description.reason
    assert referee.describe(task(source.replace("True", "False"))).ok


# -- repeats -----------------------------------------------------------------------------------------------------

PLAIN = task("""
    class Model(nn.Module):
        def forward(self, x):
            return torch.softmax(x, -1)

    def get_inputs():
        return [torch.randn(16, 40)]

    def get_init_inputs():
        return []
    """)

_UNSTEADY = """
    import itertools
    calls = itertools.count()

    class ModelNew(nn.Module):
        def forward(self, x):
            return torch.softmax(x, -1) * (1 + next(calls) * {step})
    """


def test_a_result_that_wavers_within_the_tolerance_is_told(referee: Referee) -> None:
    verdict = judge(referee, PLAIN, candidate(_UNSTEADY.format(step="2e-7")))
    assert verdict.verdict == "accepted", verdict.reason
    told = [finding for finding in verdict.findings if finding.rule == "nondeterministic"]
    assert [finding.severity for finding in told] == ["info"]
    steady = judge(referee, PLAIN, candidate(_UNSTEADY.format(step="0")))
    assert "nondeterministic" not in rules(steady)


def test_a_result_that_wavers_beyond_the_tolerance_is_incorrect(referee: Referee) -> None:
    verdict = judge(referee, PLAIN, candidate(_UNSTEADY.format(step="1e-4")))
    assert verdict.verdict == "incorrect"


_SLOW_TO_START = """
    import time

    def spend(seconds):
        until = time.process_time() + seconds
        while time.process_time() < until:
            pass

    spend(0.3)

    class ModelNew(nn.Module):
        def __init__(self):
            super().__init__()
            spend(0.3)
            self.first = True

        def forward(self, x):
            if self.first:
                spend(0.4)
            self.first = False
            return torch.softmax(x, -1)
    """


def test_set_up_and_first_call_are_told_apart(referee: Referee) -> None:
    """Set-up is the import of the file and the constructor at the first shape; neither is on any clock."""
    verdict = judge(referee, PLAIN, candidate(_SLOW_TO_START))
    assert verdict.verdict == "accepted", verdict.reason
    # The time of a processor and not of a clock: while others time, it is stopped, which does not count.
    assert verdict.setup_s >= 0.5
    assert verdict.first_call_s >= 0.3
    # One of several: other work on the cores takes time from either.
    quick = (judge(referee, PLAIN, replaced(PLAIN)) for _ in range(3))
    assert any(
        one.setup_s < verdict.setup_s - 0.2 and one.first_call_s < verdict.first_call_s - 0.1 for one in quick
    )


def test_a_first_call_may_take_a_third_of_the_deadline(
    core: RefereeCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that takes longer than the least limit ends only at a third of the evaluation's deadline."""
    monkeypatch.setattr(evaluation, "FIRST_CALL_SECONDS", 0.5)
    slow = candidate(_SLOW_TO_START.replace("spend(0.3)", "spend(0)").replace("spend(0.4)", "spend(1.5)"))
    words = []
    for deadline_s in (60.0, 3.0):  # the first one opens the task
        request = Request(PLAIN, slow, "screen", ("adversarial",), {"adversarial": [{}]}, deadline_s)
        words.append(core.evaluate(request, lambda *_: None).verdict)
    assert words == ["accepted", "timeout"]


# -- the task's own oracle ---------------------------------------------------------------------------------------

TIES = """
    class Model(nn.Module):
        def forward(self, x):
            bits = x.view(torch.int32) & -65536
            return bits.view(torch.float32) * 3.0

    def get_inputs():
        return [torch.randn(16, 40)]

    def get_init_inputs():
        return []
    """

_OWN = """
    def oracle(model, x):
        return (x.view(torch.int32) & -65536).view(torch.float32).double() * 3.0
    """


def test_a_task_may_bring_its_own_oracle(referee: Referee) -> None:
    source = task(TIES + _OWN)
    honest = judge(
        referee, source, replaced(source, (") * 3.0\n\ndef get_inputs", ").mul(3.0)\n\ndef get_inputs"))
    )
    assert honest.verdict == "accepted", (honest.reason, honest.detail)
    assert "no_float64_oracle" not in rules(honest)
    # An oracle that says something else than the reference decides.
    other = task(TIES + _OWN.replace("double() * 3.0", "double() * 3.01"))
    # By a third, and not by a fifteenth: the reference itself is off by 0.3 % of this oracle, of which short rows are allowed 4 x 2 x 2
    # times as much (12 % of the scale), so that 3.2 lay at the bound of other inputs and was accepted in two of ten draws.
    assert judge(referee, other, replaced(other, ("* 3.0\n", "* 4.0\n"))).verdict == "incorrect"
    broken = task(TIES + _OWN.replace("x.view", "x.no_such_thing"))
    verdict = judge(referee, broken, replaced(broken))
    assert verdict.verdict == "task_rejected"
    assert "oracle() failed" in verdict.reason


# -- precision tiers ---------------------------------------------------------------------------------------------

LINEAR = """
    PRECISION = "TIER"

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(64, 96)
            self.second = nn.Linear(96, 32)

        def forward(self, x):
            return torch.softmax(self.second(torch.relu(self.first(x))), -1)

    def get_inputs():
        return [torch.randn(24, 64)]

    def get_init_inputs():
        return []
    """

_LOW = """
    def low(t):
        keep = 10 - BITS
        return ROUND

    def linear(x, layer):
        return low(x) @ low(layer.weight).t() + layer.bias

    class ModelNew(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(64, 96)
            self.second = nn.Linear(96, 32)

        def forward(self, x):
            return torch.softmax(linear(torch.relu(linear(x, self.first)), self.second), -1)
    """
_TF32 = "((t.contiguous().view(torch.int32) + 4096) & -8192).view(torch.float32)"
_BF16 = "t.bfloat16().float()"
_FP8 = "(t * (448 / t.abs().max())).to(torch.float8_e4m3fn).float() / (448 / t.abs().max())"


def _low(rounding: str) -> str:
    return _LOW.replace("        keep = 10 - BITS\n", "").replace("ROUND", rounding)


@pytest.mark.parametrize(
    ("tier", "rounding", "word", "told"),
    [
        pytest.param("strict", "t * 1.0", "accepted", False, marks=pytest.mark.slow),
        ("strict", _TF32, "incorrect", False),
        # A CPU has no TF32, so the default tier is strict there.
        ("default", _TF32, "incorrect", False),
        pytest.param("tf32", "t * 1.0", "accepted", False, marks=pytest.mark.slow),
        ("tf32", _TF32, "accepted", True),
        ("tf32", _BF16, "incorrect", False),
        pytest.param("fp16", "t.half().float()", "accepted", True, marks=pytest.mark.slow),
        ("bf16", _BF16, "accepted", True),
        ("bf16", _FP8, "incorrect", False),
        ("fp8", _FP8, "accepted", True),
    ],
)
def test_a_tier_allows_its_own_rounding_and_no_more(
    tier: str, rounding: str, word: str, told: bool, referee: Referee
) -> None:
    verdict = judge(referee, task(LINEAR.replace("TIER", tier)), candidate(_low(rounding)))
    assert verdict.verdict == word, verdict.reason
    assert ("precision_change" in rules(verdict)) is told


def test_a_tier_allows_nothing_where_nothing_is_multiplied(referee: Referee) -> None:
    source = task('PRECISION = "bf16"\n' + PLAIN.source.split("nn\n", 1)[1])
    rounded = replaced(source, ("torch.softmax(x, -1)", "torch.softmax(x.bfloat16(), -1).float()"))
    assert judge(referee, source, rounded).verdict == "incorrect"


# -- global state ------------------------------------------------------------------------------------------------


def test_what_a_candidate_does_to_torch_reaches_nobody_else(referee: Referee) -> None:
    vandal = """
        torch.set_default_dtype(torch.float64)
        torch.set_float32_matmul_precision("medium")
        torch.backends.cuda.matmul.allow_tf32 = True
        torch.set_num_threads(1)
        torch.use_deterministic_algorithms(True)
        torch.softmax = F.softmax = lambda x, dim: x * 0
        torch.exp = torch.zeros_like

        class ModelNew(nn.Module):
            def forward(self, x):
                return torch.softmax(x, -1)
        """
    assert judge(referee, PLAIN, candidate(vandal)).verdict == "incorrect"
    probe = """
        assert torch.get_default_dtype() == torch.float32
        assert torch.get_float32_matmul_precision() == "highest"
        assert not torch.backends.cuda.matmul.allow_tf32
        assert not torch.are_deterministic_algorithms_enabled()

        class ModelNew(nn.Module):
            def forward(self, x):
                e = torch.exp(x - x.amax(-1, keepdim=True))
                return e * (1 / e.sum(-1, keepdim=True))
        """
    verdict = judge(referee, PLAIN, candidate(probe))
    assert verdict.verdict == "accepted", (verdict.reason, verdict.detail)
