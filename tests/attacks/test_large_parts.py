"""Outputs of which the oracle sees a part: what is right only where one might look. The comparison of large shapes, on tensors of the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from evaluator.errors import RoleReported
from evaluator.referee.checking import large
from evaluator.referee.session.outcome import Outcome, Rejected
from evaluator.referee.sides.open_shape import ShapeChecks
from evaluator.roles.exact import Arithmetic
from evaluator.roles.frames import TensorMeta
from evaluator.roles.protocol import OWN_IN_TIER

pytestmark = pytest.mark.attacks

ROWS, COLS = 4096, 64
WEIGHT = torch.randn(COLS, COLS, generator=torch.Generator().manual_seed(5))
#: Rows of a piece: 32 of them make the output, of which four are compared after a timed call.
PIECE_ROWS = 128
#: Rows that the oracle computes at a time.
PART_ROWS = 64
Module = Callable[[torch.Tensor], torch.Tensor]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large, "_PIECE", PIECE_ROWS * COLS)
    monkeypatch.setattr(large, "_PART", PART_ROWS * 2 * COLS)
    monkeypatch.setattr(large, "_WHOLE", COLS)


def norm(x: torch.Tensor) -> torch.Tensor:
    """Long sums, roots and a cut at zero, row by row."""
    return torch.relu((x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True))


def quantized(x: torch.Tensor) -> torch.Tensor:
    """Integers: a value that lies between two may become either."""
    return torch.round((x - x.mean(-1, keepdim=True)) * 16).to(torch.int32)


def signs(x: torch.Tensor) -> torch.Tensor:
    """Values that jump: one that lies at the jump may be on either side."""
    return torch.sign(x - x.mean(-1, keepdim=True))


class Reference:
    """The side of the reference, with one content in its slot."""

    gpu = False

    def __init__(self, module: Module, x: torch.Tensor) -> None:
        self.module, self.x = module, x

    def most_kinds(self, metas: Sequence[TensorMeta]) -> int:
        return 4

    def oracle(self, kinds: list[dict[str, Any]], rows: Any = None) -> list[list[torch.Tensor]]:
        x = self.x if rows is None else self.x[rows[0] : rows[1]]
        return [[self._of(x, kind).reshape(-1)] for kind in kinds]

    def _of(self, x: torch.Tensor, kind: dict[str, Any]) -> torch.Tensor:
        dtype = x.dtype
        x, move = x.double(), kind["move"]
        if move is not None:
            generator = torch.Generator().manual_seed(move["seed"])
            way = torch.randint(0, 2, x.shape, generator=generator).double() * 2 - 1
            x = x * (1 + move["sign"] * move["steps"][0] * way)
        return self.module(x.to(dtype) if kind["tier"] == "own" else x)


class ReferenceInTier(Reference):
    """The side of a reference on a GPU whose products may be rounded. The results of a call lie where those of the one before did."""

    gpu = True
    #: Where its own result lies.
    own: torch.Tensor
    has_float64 = True

    def oracle(self, kinds: list[dict[str, Any]], rows: Any = None) -> list[list[torch.Tensor]]:
        if not self.has_float64 and any(kind["tier"] not in ("own", OWN_IN_TIER) for kind in kinds):
            raise RoleReported("out_of_memory", "float64 does not fit", role="reference")
        results = super().oracle(kinds, rows)
        self.own.copy_(torch.randint(0, 256, self.own.shape, dtype=torch.uint8))
        return results

    def call_slot(self, deadline_s: float) -> Any:
        self.own.copy_(self._rounded(self.x).contiguous().view(torch.uint8).reshape(-1))
        return SimpleNamespace(report=SimpleNamespace(metas=(large._contiguous("float32", (ROWS, COLS)),)))

    def claimed(self, block: Any, call: int) -> list[torch.Tensor]:
        return [self.own]

    def _of(self, x: torch.Tensor, kind: dict[str, Any]) -> torch.Tensor:
        if kind["tier"] in ("tf32", OWN_IN_TIER):
            return self._rounded(x if kind["tier"] != "tf32" else x.double()).double()
        return super()._of(x, kind)

    def _rounded(self, x: torch.Tensor) -> torch.Tensor:
        with Arithmetic(widen=False, tier="tf32"):
            return self.module(x)


class Judged:
    """One large shape of a task and a candidate: the checks, then timed calls, each with a content of its own."""

    reference = Reference

    def __init__(self, module: Module, precision: str = "default", *, plain: bool = True) -> None:
        meta = large._contiguous("float32", (ROWS, COLS))
        given = SimpleNamespace(meta=meta, size=ROWS * COLS, rollable=True, turned=False)
        dtype = str(module(torch.rand(2, COLS)).dtype).removeprefix("torch.")
        call = SimpleNamespace(plain=plain, backward=False)
        inputs = SimpleNamespace(
            given=[given], tensors=[given], state=[], call=call, name_of=lambda index, count: ""
        )
        self.module, self.outcome = module, Outcome()
        self.shape: Any = SimpleNamespace(
            checks=ShapeChecks(),
            where="some rows",
            dims={"rows": ROWS},
            inputs=inputs,
            output_metas=[large._contiguous(dtype, (ROWS, COLS))],
            precision=precision,
            own_oracle=False,
        )

    def compare(self, candidate: Module, name: str, x: torch.Tensor) -> None:
        self.shape.side = self.reference(self.module, x)
        answer, own = (
            large.Answer(tuple(self.shape.output_metas), [y.contiguous().view(torch.uint8).reshape(-1)])
            for y in (candidate(x), self.module(x))
        )
        self.shape.side.own = own.spans[0]
        comparison = large._Comparison(self.shape, self.outcome, name)
        comparison.run(answer, own, looks=0 if name == "timed" else large._LOOKS)

    def check(self, candidate: Module) -> None:
        self.compare(candidate, "task", torch.randn(ROWS, COLS))
        self.compare(candidate, "small", torch.randn(ROWS, COLS) * 1e-3)

    def time(self, candidate: Module, blocks: int) -> None:
        for _ in range(blocks):
            self.compare(candidate, "timed", torch.randn(ROWS, COLS))


# -- right on some rows ----------------------------------------------------------------------------------------------


def zeros_between_first_and_last_rows(x: torch.Tensor) -> torch.Tensor:
    y = torch.zeros(ROWS, COLS)
    y[:64], y[-64:] = norm(x[:64]), norm(x[-64:])
    return y


def every_second_row_copied(x: torch.Tensor) -> torch.Tensor:
    return norm(x[::2]).repeat_interleave(2, dim=0)


def half_precision_between(x: torch.Tensor) -> torch.Tensor:
    y = norm(x)
    y[64:-64] = norm(x[64:-64].half()).float()
    return y


def half_precision_in_one_row(x: torch.Tensor) -> torch.Tensor:
    y = norm(x)
    y[2000] = norm(x[2000:2001].half()).float()
    return y


def one_row_of_zeros(x: torch.Tensor) -> torch.Tensor:
    y = norm(x)
    y[int(x.abs().sum().item()) % ROWS] = 0.0
    return y


def one_value_one_percent_off(x: torch.Tensor) -> torch.Tensor:
    y = norm(x)
    y[1234, int(y[1234].argmax())] *= 1.01
    return y


def tail_never_written(x: torch.Tensor) -> torch.Tensor:
    y = norm(x)
    y[-16:] = torch.nan  # what the memory was poisoned with
    return y


def rows_of_the_neighbor(x: torch.Tensor) -> torch.Tensor:
    y = norm(x)
    y[PIECE_ROWS::PIECE_ROWS] = y[PIECE_ROWS - 1 : -1 : PIECE_ROWS]
    return y


@pytest.mark.parametrize(
    "candidate",
    [
        zeros_between_first_and_last_rows,
        every_second_row_copied,
        half_precision_between,
        half_precision_in_one_row,
        one_row_of_zeros,
        one_value_one_percent_off,
        tail_never_written,
        rows_of_the_neighbor,
    ],
)
def test_what_is_right_in_some_rows_only_is_wrong(candidate: Module) -> None:
    for _ in range(5):
        with pytest.raises(Rejected) as caught:
            Judged(norm).check(candidate)
        assert caught.value.word == "incorrect"


@pytest.mark.parametrize("module", [norm, signs])
def test_who_sums_in_another_order_is_right(module: Module) -> None:
    """So that what is refused here is refused for what is wrong with it."""

    def other_order(x: torch.Tensor) -> torch.Tensor:
        return module(x.flip(-1)).flip(-1)

    for _ in range(3):
        judged = Judged(module)
        judged.check(other_order)
        judged.time(other_order, 4)
        assert [finding.rule for finding in judged.shape.checks.notes] == ["oracle_on_part"]


class ReferenceWithoutFloat64(Reference):
    """Its results in float64 do not fit."""

    def oracle(self, kinds: list[dict[str, Any]], rows: Any = None) -> list[list[torch.Tensor]]:
        if any(kind["tier"] != "own" for kind in kinds):
            raise RoleReported("out_of_memory", "float64 does not fit", role="reference")
        return super().oracle(kinds, rows)


class JudgedWithoutFloat64(Judged):
    reference = ReferenceWithoutFloat64


#: Its columns add up to zero: of large inputs the terms are large, and the sums are not.
BALANCED = WEIGHT - WEIGHT.double().mean(0).float()


def one_term_after_another(x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros_like(x)
    for place in range(COLS):
        total = total + x[:, place : place + 1] * BALANCED[place].to(x.dtype)
    return total


def test_where_float64_does_not_fit_the_reference_says_how_far_rounding_moves_it() -> None:
    """Its own result counts as exact then, and no two sums of large terms that cancel are the same."""

    def other_order(x: torch.Tensor) -> torch.Tensor:
        return x @ BALANCED

    def of_fewer_bits(x: torch.Tensor) -> torch.Tensor:
        return other_order((x.view(torch.int32) & -64).view(torch.float32))

    for _ in range(3):
        judged = JudgedWithoutFloat64(one_term_after_another)
        x = torch.randn(ROWS, COLS) + 1000.0
        judged.compare(other_order, "task", x)
        assert "no_float64_oracle" in [finding.rule for finding in judged.shape.checks.notes]
        with pytest.raises(Rejected):
            judged.compare(of_fewer_bits, "task", x)


# -- right in the checks ---------------------------------------------------------------------------------------------


def at_a_jump(count: int) -> torch.Tensor:
    """Rows in which the reference itself puts the first value on the wrong side."""
    found: list[torch.Tensor] = []
    while len(found) < count:
        x = torch.randn(4096, COLS) + 1000.0
        x[:, 0] = x[:, 1:].double().mean(-1).float()
        wrong = signs(x) != signs(x.double())
        found += x[wrong[:, 0] & (wrong.sum(-1) == 1) & (signs(x)[:, 0] != 0)].unbind()
    return torch.stack(found[:count])


def first_rows_of_pieces(
    x: torch.Tensor, module: Module, flipped: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """Of each piece one row in which a value is on the other side of a jump, as right as on this one; nothing else is computed."""
    y = torch.zeros_like(module(x))
    at = torch.arange(0, ROWS, PIECE_ROWS)
    y[at] = flipped(module(x[at]))
    return y


def test_one_row_that_may_differ_hides_no_others_of_integers() -> None:
    """Every row with a difference counted as much as each other, and the first of them was looked at."""

    x = torch.randn(ROWS, COLS)
    # The first row of each piece has two values that lie between two integers.
    x[::PIECE_ROWS] = 0.0
    x[::PIECE_ROWS, 0], x[::PIECE_ROWS, 1] = 10.5 / 16, -10.5 / 16

    def cheat(x: torch.Tensor) -> torch.Tensor:
        def flipped(y: torch.Tensor) -> torch.Tensor:
            y = y.clone()
            assert bool((y[:, 0] == 10).all())
            y[:, 0] = 11
            return y

        return first_rows_of_pieces(x, quantized, flipped)

    judged = Judged(quantized)
    judged.check(quantized)
    with pytest.raises(Rejected) as caught:
        judged.compare(cheat, "timed", x)
    assert caught.value.word == "incorrect"


def test_one_row_that_may_differ_hides_no_others_of_values_that_jump() -> None:
    """On the other side of a jump a value differs by twice its size, one that was not computed by its size."""

    def cheat(x: torch.Tensor) -> torch.Tensor:
        def flipped(y: torch.Tensor) -> torch.Tensor:
            y = y.clone()
            y[:, 0] = -y[:, 0]
            return y

        return first_rows_of_pieces(x, signs, flipped)

    judged = Judged(signs)
    judged.check(signs)
    x = torch.randn(ROWS, COLS)
    x[::PIECE_ROWS] = at_a_jump(ROWS // PIECE_ROWS)
    with pytest.raises(Rejected) as caught:
        judged.compare(cheat, "timed", x)
    assert caught.value.word == "incorrect"


@pytest.mark.parametrize(("left_out", "blocks"), [(16, 2), (4, 24), (1, 96)])
def test_pieces_that_are_left_out_when_timed_are_found(left_out: int, blocks: int) -> None:
    """Four of 32 are compared: who leaves out one of them in each call is found in one call of eight."""

    def cheat(x: torch.Tensor) -> torch.Tensor:
        y = norm(x)
        for piece in torch.randperm(ROWS // PIECE_ROWS)[:left_out].tolist():
            y[piece * PIECE_ROWS : (piece + 1) * PIECE_ROWS] = 0.0
        return y

    judged = Judged(norm)
    judged.check(norm)
    with pytest.raises(Rejected) as caught:
        judged.time(cheat, blocks)
    assert caught.value.word == "incorrect"


def test_a_place_that_is_always_left_out_is_found() -> None:
    def cheat(x: torch.Tensor) -> torch.Tensor:
        y = norm(x)
        y[-PIECE_ROWS:] = 0.0
        return y

    judged = Judged(norm)
    judged.check(norm)
    with pytest.raises(Rejected) as caught:
        judged.time(cheat, 96)
    assert caught.value.word == "incorrect"


# -- products in a lower tier, and rows that depend on each other ------------------------------------------------------


class JudgedInTier(Judged):
    """As in a task with backward, whose rows are not looked at alone."""

    reference = ReferenceInTier

    def __init__(self, module: Module) -> None:
        super().__init__(module, "tf32", plain=False)


def product(x: torch.Tensor) -> torch.Tensor:
    """A product, from which a part of every other row is taken."""
    y = x @ WEIGHT.to(x.dtype)
    return y - y.mean(0)


def rounded_product(x: torch.Tensor) -> torch.Tensor:
    with Arithmetic(widen=False, tier="tf32"):
        return product(x)


def more_rounded_product(x: torch.Tensor) -> torch.Tensor:
    """As hardware that truncates what others round: as right, and neither's result."""
    return product(((x.contiguous().view(torch.int32)) & -8192).view(torch.float32))


def product_of_few_bits(x: torch.Tensor) -> torch.Tensor:
    return product(x.to(torch.float8_e4m3fn).float())


@pytest.mark.parametrize(("whole", "has_float64"), [(COLS, True), (ROWS * COLS, True), (ROWS * COLS, False)])
def test_what_the_tier_rounds_is_right_where_rows_depend_on_each_other(
    whole: int, has_float64: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Timed calls were compared with the reference's result in full precision, within the tolerance of that."""
    monkeypatch.setattr(large, "_WHOLE", whole)
    monkeypatch.setattr(ReferenceInTier, "has_float64", has_float64)
    for candidate in (rounded_product, more_rounded_product, product):
        judged = JudgedInTier(product)
        judged.check(candidate)
        judged.time(candidate, 4)
    with pytest.raises(Rejected) as caught:
        judged.time(product_of_few_bits, 1)
    assert caught.value.word == "incorrect"


@pytest.mark.parametrize("whole", [COLS, ROWS * COLS])
@pytest.mark.parametrize("planted", [torch.nan, torch.inf, 0.0])
def test_one_wrong_value_where_rows_depend_on_each_other(
    whole: int, planted: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(x: torch.Tensor) -> torch.Tensor:
        y = rounded_product(x)
        y[100, int(y[100].abs().argmax())] = planted
        return y

    monkeypatch.setattr(large, "_WHOLE", whole)
    monkeypatch.setattr(large, "_TIMED_PIECES", ROWS)
    judged = JudgedInTier(product)
    judged.check(rounded_product)
    for name in ("timed", "wide_range"):
        with pytest.raises(Rejected) as caught:
            judged.compare(wrong, name, torch.randn(ROWS, COLS))
        assert caught.value.word == "incorrect"


def test_nobody_knows_at_which_rows_the_oracle_looks() -> None:
    judged = Judged(norm)
    judged.shape.side = Reference(norm, torch.randn(ROWS, COLS))
    comparison = large._Comparison(judged.shape, judged.outcome, "task")
    drawn = [comparison._drawn_rows() for _ in range(200)]
    assert all(end - first == PART_ROWS and first >= 0 and end <= ROWS for first, end in drawn)
    assert len({first * 8 // ROWS for first, _ in drawn}) == 8


def test_a_call_that_is_verified_after_it_was_filled_late_is_seen_to_change() -> None:
    memory = norm(torch.randn(ROWS, COLS)).view(torch.uint8).reshape(-1)
    key, before = large.fingerprint(memory)
    memory[-4:] = torch.tensor([0, 0, 128, 63], dtype=torch.uint8)
    assert large.fingerprint(memory, key)[1] != before
