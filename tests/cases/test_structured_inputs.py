"""Inputs with structure (triangular, masks, sorted) keep it, and a candidate may rely on what every draw has."""

from __future__ import annotations

import pytest

from evaluator.client import Referee
from tests.evaluator.judging import judge, replaced, rules, task
from tests.variants import some

_TRIANGULAR = """
class Model(nn.Module):
    def forward(self, a, b):
        return torch.tril(a @ b)


def get_inputs():
    return [torch.tril(torch.rand(40, 40)), torch.tril(torch.rand(40, 40))]


def get_init_inputs():
    return []
"""
_BLOCKS = """
        half = a.shape[0] // 2
        upper = torch.tril(a[:half, :half] @ b[:half, :half])
        lower = torch.tril(a[half:, half:] @ b[half:, half:])
        left = a[half:] @ b[:, :half]
        return torch.cat([torch.cat([upper, torch.zeros(half, a.shape[0] - half)], 1), torch.cat([left, lower], 1)])
"""
_ATTENTION = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(32, 96)

    def forward(self, x, mask):
        q, k, v = (part.view(2, 24, 4, 8).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        return torch.softmax(q @ k.mT / 8**0.5 + mask, -1) @ v, None


def get_inputs():
    mask = torch.full((24, 24), torch.finfo(torch.float32).min).triu(1)[None, None].expand(2, 1, 24, 24)
    return [torch.randn(2, 24, 32), mask]


def get_init_inputs():
    return []
"""
_CHOLESKY = """
class Model(nn.Module):
    def forward(self, a, b):
        return torch.linalg.solve(a, b)


def get_inputs():
    half = torch.randn(24, 24)
    return [half @ half.mT + 24 * torch.eye(24), torch.randn(24, 5)]


def get_init_inputs():
    return []
"""
_ONE_HOT = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Linear(16, 40)

    def forward(self, x):
        return self.table(x)


def get_inputs():
    return [F.one_hot(torch.randint(0, 16, (64,)), 16).float()]


def get_init_inputs():
    return []
"""
_SORTED = """
class Model(nn.Module):
    def forward(self, edges, x):
        return torch.bucketize(x, edges.sort().values) * x


def get_inputs():
    return [torch.rand(33).sort().values, torch.rand(50, 20)]


def get_init_inputs():
    return []
"""
_NORMALIZED = """
class Model(nn.Module):
    def forward(self, p):
        return torch.log(p / p.sum(-1, keepdim=True) + 1e-3)


def get_inputs():
    return [torch.softmax(torch.randn(40, 30), -1)]


def get_init_inputs():
    return []
"""


@pytest.mark.parametrize(
    ("body", "relying", "broken"),
    some(
        [
            (
                _TRIANGULAR,
                ("        return torch.tril(a @ b)", _BLOCKS),
                ("left = a[half:] @ b[:, :half]", "left = a[half:, half:] @ b[half:, :half]"),
            ),
            (
                _ATTENTION,
                (
                    "torch.softmax(q @ k.mT / 8**0.5 + mask, -1) @ v",
                    "F.scaled_dot_product_attention(q, k, v, is_causal=True).contiguous()",
                ),
                ("is_causal=True", "is_causal=False"),
            ),
            (
                _CHOLESKY,
                ("torch.linalg.solve(a, b)", "torch.cholesky_solve(b, torch.linalg.cholesky(a))"),
                ("linalg.cholesky(a)", "linalg.cholesky(a.abs())"),
            ),
            (
                _ONE_HOT,
                ("self.table(x)", "self.table.weight.T[x.argmax(-1)] + self.table.bias"),
                ("x.argmax(-1)", "torch.zeros(len(x), dtype=torch.long)"),
            ),
            (_SORTED, ("edges.sort().values", "edges"), ("bucketize(x, edges)", "bucketize(x, edges[:-1])")),
            (_NORMALIZED, ("p / p.sum(-1, keepdim=True)", "p"), ("log(p + 1e-3)", "log(p)")),
        ]
    ),
    ids=["triangular", "causal mask", "positive definite", "one-hot", "sorted", "normalized"],
)
def test_a_candidate_that_relies_on_it_is_right_and_a_wrong_one_is_not(
    referee: Referee, body: str, relying: tuple[str, str], broken: tuple[str, str]
) -> None:
    source = task(body)
    verdict = judge(referee, source, replaced(source, relying))
    assert verdict.verdict == "accepted", verdict.reason
    wrong = judge(referee, source, replaced(source, relying, broken))
    assert wrong.verdict in ("incorrect", "runtime_error"), wrong.reason
    assert "task inputs" not in wrong.reason


def test_a_constant_mask_beside_drawn_integers_is_no_seed(referee: Referee) -> None:
    """The only floats are the same every time, while the tokens are not."""
    source = task("""
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(50, 16)

    def forward(self, tokens, mask):
        x = self.table(tokens)
        return torch.softmax(x @ x.mT + mask, -1) @ x


def get_inputs():
    return [torch.randint(0, 50, (4, 24)), torch.full((24, 24), -1e9).triu(1)]


def get_init_inputs():
    return []
""")
    causal = ("+ mask", "+ torch.full((24, 24), -1e9).triu(1)")
    verdict = judge(referee, source, replaced(source, causal))
    assert verdict.verdict == "accepted", verdict.reason
    assert "limit_constant_inputs" in rules(verdict)


def test_of_inputs_that_stay_as_drawn_two_draws_are_asked(referee: Referee) -> None:
    source = task(_TRIANGULAR + '\nDOMAIN = {"a": "as_drawn", "b": "as_drawn"}\n')
    kept = (
        "        return torch.tril(a @ b)",
        """        if not hasattr(self, "made"):
            self.made = torch.tril(a @ b)
        return self.made.clone()""",
    )
    tries = [replaced(source, kept, ("made", f"made{n}")) for n in range(4)]
    words = {judge(referee, source, one).verdict for one in tries}
    assert words <= {"incorrect", "cheating"}, words


def test_a_structure_that_draws_do_not_share_is_none(referee: Referee) -> None:
    source = task(_TRIANGULAR.replace("torch.tril(torch.rand(40, 40)),", "torch.rand(40, 40),"))
    verdict = judge(referee, source, replaced(source, ("        return torch.tril(a @ b)", _BLOCKS)))
    assert verdict.verdict == "incorrect"
