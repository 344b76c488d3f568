"""Every dtype that torch computes with: an honest candidate is accepted, a slip in exactly that dtype is not."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from evaluator.client import Referee
from evaluator.sources import CandidateSource, TaskSource
from tests.evaluator.judging import judge, replaced, rules, task
from tests.variants import some


@dataclass(frozen=True)
class Kind:
    """A task, an honest rewriting of it, and wrong ones with the verdict and the finding that they earn."""

    task: TaskSource
    honest: tuple[tuple[str, str], ...]
    wrong: tuple[tuple[tuple[tuple[str, str], ...], str, str], ...]


KINDS = {
    "float8_dequantize": Kind(
        task("""
        class Model(nn.Module):
            def forward(self, x, scale):
                return x.to(torch.float32) * scale

        def get_inputs():
            return [(torch.randn(37, 50) * 3).to(torch.float8_e4m3fn), torch.rand(37, 1) + 0.1]

        def get_init_inputs():
            return []
        """),
        (("x.to(torch.float32) * scale", "scale * x.float()"),),
        (
            (
                (("x.to(torch.float32) * scale", "(x.to(torch.bfloat16) * scale.bfloat16()).float()"),),
                "incorrect",
                "wrong_result",
            ),
            ((("float8_e4m3fn", "float8_e5m2"), ("x.to", "x.view(torch.float8_e5m2).to")), "incorrect", "wrong_result"),
        ),
    ),
    "float8_quantize": Kind(
        task("""
        class Model(nn.Module):
            def forward(self, x):
                scale = x.abs().amax(-1, keepdim=True) / 448.0
                return (x / scale).to(torch.float8_e4m3fn), scale

        def get_inputs():
            return [torch.randn(64, 96)]

        def get_init_inputs():
            return []
        """),
        (("x / scale", "x * (1.0 / scale)"),),
        (
            ((("x / scale", "x / (1.08 * scale)"),), "incorrect", "wrong_result"),
            ((("448.0", "240.0"),), "incorrect", "wrong_result"),
        ),
    ),
    "int8_quantize": Kind(
        task("""
        class Model(nn.Module):
            def forward(self, x):
                scale = x.abs().amax(-1, keepdim=True) / 127.0
                return torch.round(x / scale).clamp(-127, 127).to(torch.int8), scale

        def get_inputs():
            return [torch.randn(64, 96)]

        def get_init_inputs():
            return []
        """),
        (("x / scale", "x * (1.0 / scale)"),),
        (((("torch.round(x / scale)", "(x / scale)"),), "incorrect", "wrong_result"),),
    ),
    "int8_weights": Kind(
        task("""
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = nn.Parameter(torch.randint(-127, 128, (24, 40), dtype=torch.int8), requires_grad=False)
                self.scale = nn.Parameter(torch.rand(24))

            def forward(self, x):
                return F.linear(x, self.weight.to(torch.float32)) * self.scale

        def get_inputs():
            return [torch.randn(16, 40)]

        def get_init_inputs():
            return []
        """),
        (("self.weight.to(torch.float32)) * self.scale", "self.weight.float() * self.scale[:, None])"),),
        (((("* self.scale", "* self.scale.half().float()"),), "incorrect", "wrong_result"),),
    ),
    "complex64": Kind(
        task("""
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = nn.Parameter(torch.randn(64, dtype=torch.complex64))

            def forward(self, x):
                return torch.fft.fft(x) * self.weight, x.abs().sum(-1)

        def get_inputs():
            return [torch.randn(20, 64, dtype=torch.complex64)]

        def get_init_inputs():
            return []
        """),
        (("torch.fft.fft(x) * self.weight", "self.weight * torch.fft.ifft(x.conj()).conj().resolve_conj() * 64"),),
        (
            ((("* self.weight", "* self.weight.conj().resolve_conj()"),), "incorrect", "wrong_result"),
            ((("* self.weight", "* torch.complex(self.weight.real.half().float(), self.weight.imag)"),), "incorrect", "wrong_result"),
            ((("* self.weight,", "* self.weight.real,"),), "incorrect", "wrong_result"),
        ),
    ),
    "booleans": Kind(
        task("""
        class Model(nn.Module):
            def forward(self, x, y, mask):
                return (x > y) & mask, mask.sum(-1)

        def get_inputs():
            return [torch.randint(0, 4, (33, 20)), torch.randint(0, 4, (33, 20)), torch.rand(33, 20) > 0.5]

        def get_init_inputs():
            return []
        """),
        (("(x > y) & mask", "torch.logical_and(mask, y < x)"),),
        (
            ((("x > y", "x >= y"),), "incorrect", "wrong_result"),
            ((("(x > y) & mask", "((x > y) & mask).to(torch.uint8)"),), "contract_violation", "output_contract"),
        ),
    ),
    "integers": Kind(
        task("""
        class Model(nn.Module):
            def forward(self, a, b, index, table):
                return a.sum(-1, dtype=torch.int32), (b << 2) ^ (b >> 1), table[index], index.argmax(-1)

        def get_inputs():
            return [
                torch.randint(0, 256, (9, 700), dtype=torch.uint8), torch.randint(-9000, 9000, (9, 70), dtype=torch.int16),
                torch.randint(0, 50, (11, 8)), torch.randint(-2**31, 2**31 - 1, (50,), dtype=torch.int32),
            ]

        def get_init_inputs():
            return []
        """),
        (("(b << 2) ^ (b >> 1)", "(b * 4) ^ torch.div(b, 2, rounding_mode='floor').to(torch.int16)"),),
        (
            ((("dtype=torch.int32", "dtype=torch.int16).to(torch.int32"),), "incorrect", "wrong_result"),
            ((("table[index]", "table.float()[index].to(torch.int32)"),), "incorrect", "wrong_result"),
        ),
    ),
    "bfloat16": Kind(
        task("""
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = nn.Parameter(torch.ones(128, dtype=torch.bfloat16))

            def forward(self, x):
                wide = x.float()
                normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
                return normed.to(torch.bfloat16) * self.weight

        def get_inputs():
            return [torch.randn(40, 128, dtype=torch.bfloat16)]

        def get_init_inputs():
            return []
        """),
        (("normed.to(torch.bfloat16) * self.weight", "(normed * self.weight.float()).to(torch.bfloat16)"),),
        (
            ((("return normed", "normed = normed.to(torch.float8_e4m3fn); return normed"),), "incorrect", "wrong_result"),
            ((("return normed.to", "return (1.02 * normed).to"),), "incorrect", "wrong_result"),
        ),
    ),
    "float16": Kind(
        task("""
        class Model(nn.Module):
            def forward(self, x):
                return torch.softmax(x, -1), torch.logsumexp(x.double(), -1)

        def get_inputs():
            return [torch.randn(40, 128, dtype=torch.float16)]

        def get_init_inputs():
            return []
        """),
        (("torch.softmax(x, -1)", "torch.softmax(x.float(), -1).half()"),),
        (
            ((("torch.softmax(x, -1)", "torch.softmax(x.bfloat16(), -1).half()"),), "incorrect", "wrong_result"),
            ((("x.double(), -1)", "x.float(), -1).double()"),), "incorrect", "wrong_result"),
        ),
    ),
    "nested_containers": Kind(
        task("""
        class Model(nn.Module):
            def forward(self, pair, options, count, name=None):
                total = pair[0] + options["y"]["z"] * options["factor"]
                return {"sum": total, "parts": [total.half(), (pair[1] + count, None)], "rows": total.shape[0], "by": name}

        def get_inputs():
            return [
                (torch.randn(6, 7), torch.randint(0, 9, (5,))),
                {"y": {"z": torch.randn(6, 7)}, "factor": 0.5, "flag": True}, 3, "plain",
            ]

        def get_init_inputs():
            return []
        """),
        (("[total.half(), (pair[1] + count, None)]", "[total.half(), (count + pair[1], None)]"),),
        (
            ((("pair[1] + count", "pair[1] + 2"),), "incorrect", "wrong_result"),
            ((('"rows": total.shape[0]', '"rows": total.shape[1]'),), "incorrect", "wrong_result"),
            ((('"by": name', '"by": "other"'),), "contract_violation", "output_structure"),
            ((("(pair[1] + count, None)", "pair[1] + count"),), "contract_violation", "output_structure"),
            ((("(pair[1] + count, None)", "[pair[1] + count, None]"),), "contract_violation", "output_structure"),
            ((("total.half()", "total"),), "contract_violation", "output_contract"),
        ),
    ),
    "not_a_number": Kind(
        task("""
        class Model(nn.Module):
            def forward(self, x):
                return torch.log(x), 1.0 / torch.relu(x)

        def get_inputs():
            return [torch.randn(30, 40)]

        def get_init_inputs():
            return []
        """),
        (("torch.log(x)", "torch.log2(x) * 0.6931471805599453"),),
        (
            ((("torch.log(x)", "torch.log(x).nan_to_num(0.0)"),), "incorrect", "wrong_result"),
            ((("1.0 / torch.relu(x)", "(1.0 / torch.relu(x)).clamp(max=1e30)"),), "incorrect", "wrong_result"),
        ),
    ),
}  # fmt: skip

WRONG = [
    pytest.param(kind, changes, word, rule, id=f"{name}-{number}")
    for name, kind in KINDS.items()
    for number, (changes, word, rule) in enumerate(kind.wrong)
]


@pytest.mark.parametrize("kind", some(KINDS.values(), 3), ids=list(KINDS))
def test_an_honest_rewriting_is_accepted(kind: Kind, referee: Referee) -> None:
    verdict = judge(referee, kind.task, replaced(kind.task, *kind.honest))
    assert verdict.verdict == "accepted", (verdict.reason, verdict.detail)
    assert "no_float64_oracle" not in rules(verdict), verdict.findings


@pytest.mark.parametrize(("kind", "changes", "word", "rule"), some(WRONG))
def test_a_planted_slip_is_found(
    kind: Kind, changes: tuple[tuple[str, str], ...], word: str, rule: str, referee: Referee
) -> None:
    proposal: CandidateSource = replaced(kind.task, *changes)
    verdict = judge(referee, kind.task, proposal)
    assert verdict.verdict == word, (verdict.reason, verdict.detail)
    assert rule in rules(verdict)


@pytest.mark.parametrize("dtype", [pytest.param("float32", marks=pytest.mark.slow), "bfloat16"])
def test_a_reference_that_does_not_run_in_float64_allows_no_more_than_rounding(
    dtype: str, referee: Referee
) -> None:
    """Its own result counts as exact, and that for moved inputs says how far rounding moves it, in numbers that NumPy may not know."""
    source = task(f"""
    PRECISION = "strict"
    WEIGHT = torch.randn(64, 96, generator=torch.Generator().manual_seed(1)).to(torch.{dtype})
    class Model(nn.Module):
        def forward(self, x, order):
            return (torch.tanh(x @ WEIGHT))[order]

    def get_inputs():
        return [torch.randn(24, 64).to(torch.{dtype}), torch.randint(0, 24, (24,))]

    def get_init_inputs():
        return []
    """)
    verdict = judge(
        referee, source, replaced(source, ("x @ WEIGHT", "(WEIGHT.t() @ x.t()).t().contiguous()"))
    )
    assert (verdict.verdict, "no_float64_oracle" in rules(verdict)) == ("accepted", True)
    for wrong in ("torch.tanh(x @ WEIGHT) * 0.5", "torch.randn(24, 96).to(x.dtype) * 100"):
        verdict = judge(referee, source, replaced(source, ("torch.tanh(x @ WEIGHT)", wrong)))
        assert verdict.verdict == "incorrect", (wrong, verdict.reason)


def test_sums_of_large_terms_that_cancel_may_run_in_any_order_without_float64(referee: Referee) -> None:
    """Of two float32 sums neither is exact: the reference's says by moved inputs how far it is off itself."""
    source = task("""
    WEIGHT = torch.randn(512, 8, generator=torch.Generator().manual_seed(1))
    WEIGHT = WEIGHT - WEIGHT.double().mean(0).float()
    class Model(nn.Module):
        def forward(self, x):
            total = torch.zeros(x.shape[0], 8, dtype=x.dtype)
            for part in range(0, 512, 4):
                total = total + (x[:, part : part + 4] @ WEIGHT[part : part + 4])
            return total

    def get_inputs():
        return [torch.randn(24, 512)]

    def get_init_inputs():
        return []
    """)
    verdict = judge(referee, source, replaced(source, ("range(0, 512, 4)", "range(508, -4, -4)")))
    assert (verdict.verdict, "no_float64_oracle" in rules(verdict)) == ("accepted", True), verdict.reason
