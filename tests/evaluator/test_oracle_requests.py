"""The oracle's results of one content come in one request, are those of separate requests, and survive failures."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from evaluator.oracle.compare import compare
from evaluator.referee.judging.core import RefereeCore
from evaluator.referee.session.expectation import Case, case_of, compare_all, own_result
from evaluator.referee.session.task_session import TaskSession
from evaluator.referee.sides.open_shape import OpenShape
from evaluator.request import Request
from evaluator.roles import exact, protocol
from evaluator.roles.open_shape import Shape
from evaluator.verdict import Finding
from tests.evaluator.judging import replaced, task


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def core(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RefereeCore]:
    if request.param == "cpu":
        yield request.getfixturevalue("core_of_all")
        return
    running = RefereeCore(request.param, tmp_path_factory.mktemp("core"), "landlock")
    yield running
    running.close()


class Counting:
    """Counts the requests that a process is sent and leaves them as they are."""

    def __init__(self, process: Any) -> None:
        self.seen: list[int] = []
        self._send = process.send
        process.send = self._count

    def _count(self, operation: int, *rest: Any) -> int:
        self.seen.append(operation)
        number: int = self._send(operation, *rest)
        return number


#: Both a rounded output and one that is not, in a precision tier: all four kinds of results.
EVERYTHING = task("""
    PRECISION = "bf16"

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(24, 40)

        def forward(self, x, places):
            out = self.linear(x)
            picked = out.double().gather(1, places)
            if x.dtype == torch.float64:
                places.zero_()
            return out, torch.round(out * 50).to(torch.int8), picked

    def get_inputs():
        return [torch.randn(8, 24), torch.randint(0, 30, (8, 5))]

    def get_init_inputs():
        return []
    """)


def _case(
    session: TaskSession, shape: OpenShape, contents: list[Any], monkeypatch: pytest.MonkeyPatch
) -> tuple[Case, list[int], list[Finding]]:
    """The case of a content, with the same move every time; the requests that it took; and what was noted."""
    monkeypatch.setattr("secrets.randbits", lambda bits: 7)
    shape.checks.notes.clear()
    result = own_result(shape, "task", contents)
    counting = Counting(session.process)
    try:
        case = case_of(shape, result)
    finally:
        del session.process.send
    return case, counting.seen, list(shape.checks.notes)


def _host(values: Any) -> Any:
    return values.cpu().numpy() if isinstance(values, torch.Tensor) else values


def _same(first: Case, second: Case) -> bool:
    return all(
        np.array_equal(_host(getattr(a, name)), _host(getattr(b, name)))
        for a, b in zip(first.expected, second.expected, strict=True)
        for name in ("exact", "bound", "strict")
    ) and all(
        np.array_equal(_host(mine), _host(other))
        for a, b in zip(first.expected, second.expected, strict=True)
        for mine, other in zip(a.alternatives, b.alternatives, strict=True)
    )


def test_one_request_says_what_five_say(core: RefereeCore, monkeypatch: pytest.MonkeyPatch) -> None:
    session = core.session(EVERYTHING)
    shape = session.open({})
    shape.side.fill_from("task")
    contents = shape.side.contents(0)
    together, requests, findings = _case(session, shape, contents, monkeypatch)
    assert requests == [protocol.ORACLE] and not findings
    assert len(together.expected[1].alternatives) == 3
    monkeypatch.setattr(type(shape.side), "_oracle_room_bytes", lambda side: 0)
    assert shape.side.most_kinds(shape.output_metas) == 1
    apart, requests, _ = _case(session, shape, contents, monkeypatch)
    assert requests == [protocol.ORACLE] * 5
    assert _same(together, apart)
    two_bytes = 2 * sum(8 * meta.elements + 512 for meta in shape.output_metas)
    monkeypatch.setattr(type(shape.side), "_oracle_room_bytes", lambda side: two_bytes)
    halves, requests, _ = _case(session, shape, contents, monkeypatch)
    assert requests == [protocol.ORACLE] * 3 and _same(together, halves)


def test_a_kind_that_fails_takes_no_other_with_it(core: RefereeCore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Moved inputs lead this module to fail, the exact ones do not."""
    source = task("""
        class Model(nn.Module):
            def forward(self, x):
                if bool((x != x.bfloat16()).any()):
                    raise RuntimeError("these were moved")
                return torch.exp(x)

        def get_inputs():
            return [torch.randint(-40, 40, (16, 24)) / 8]

        def get_init_inputs():
            return []
        """)
    session = core.session(source)
    shape = session.open({})
    shape.side.fill_from("task")
    contents = shape.side.contents(0)
    case, requests, findings = _case(session, shape, contents, monkeypatch)
    assert requests == [protocol.ORACLE] * 3
    assert [finding.rule for finding in findings] == ["no_float64_oracle"]
    assert "these were moved" in findings[0].evidence
    wide = np.exp(_host(contents[0]).view(np.float32).astype(np.float64))
    assert np.allclose(_host(case.expected[0].exact).ravel(), wide, rtol=1e-12, atol=0)


def test_results_of_another_form_are_asked_for_one_by_one(
    core: RefereeCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How many elements there are depends on rounding: told by itself, as it always was."""
    source = task("""
        PRECISION = "bf16"

        class Model(nn.Module):
            def forward(self, x):
                moved = bool((x != x.bfloat16()).any())
                return x[: 3 if moved else 4] * 2

        def get_inputs():
            return [torch.randint(-40, 40, (16, 24)) / 8]

        def get_init_inputs():
            return []
        """)
    session = core.session(source)
    shape = session.open({})
    shape.side.fill_from("task")
    with pytest.raises(Exception, match="shapes that differ from the reference"):
        _case(session, shape, shape.side.contents(0), monkeypatch)


def test_an_ill_conditioned_row_is_called_wrong_only_after_more_moves(
    core: RefereeCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One move changes a few rows of an attention with large scores by less than float32's sums do in another order."""
    source = task("""
        class Model(nn.Module):
            def forward(self, q, k, v):
                return (q @ k.T).softmax(-1) @ v

        def get_inputs():
            return [torch.randn(65536, 64), torch.randn(77, 64), torch.randn(77, 64)]

        def get_init_inputs():
            return []
        """)
    shape = core.session(source).open({})
    shape.side.fill_from("task")
    draw = torch.Generator().manual_seed(1)
    given = []
    for rows, scale in ((65536, 2.0), (77, 1.0), (77, 1.0)):
        wide = torch.randn(rows, 64, generator=draw) * torch.randn(rows, 64, generator=draw).exp()
        given.append(scale * wide * (torch.rand(rows, 1, generator=draw) * 12 - 6).exp2())
    contents = [_flat_on(shape, one) for one in given]
    contents = [one.view(torch.uint8) for one in contents] if shape.side.gpu else contents
    seeds = itertools.count()
    monkeypatch.setattr("secrets.randbits", lambda bits: next(seeds))
    case = case_of(shape, own_result(shape, "wide_range", contents))
    q, k, v = given
    score = torch.zeros(len(q), len(k))
    for place in torch.randperm(64, generator=draw):
        score += q[:, place, None] * k[None, :, place]
    honest = _flat_on(shape, score.softmax(-1) @ v)
    before = compare(honest, case.expected[0])
    assert not before.ok and before.ratio < 8
    assert compare_all(shape, case, [honest])[0].ok
    assert compare(honest, case.expected[0]) == before, "one candidate's moves help the next"
    coarse = (q.view(torch.int32) & ~0x1FFF).view(torch.float32)  # TF32's bits
    assert not compare_all(shape, case, [_flat_on(shape, (coarse @ k.T).softmax(-1) @ v)])[0].ok
    one_off = (q @ k.T).softmax(-1) @ v
    one_off[7] *= 1 + 1e-4 + 40 * float(case.expected[0].bound[7, 0])
    assert not compare_all(shape, case, [_flat_on(shape, one_off)])[0].ok


def test_rows_that_weights_make_ill_conditioned_are_found_by_moving_weights(core: RefereeCore) -> None:
    """The result is linear in the input, whose moves say nothing of exponentials of sums of weights."""
    source = task("""
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.w = nn.Parameter(torch.randn(16384, 16))

            def forward(self, x):
                return x * torch.sin(self.w.cumsum(-1) * torch.logspace(0, 3, 16384, device=x.device)[:, None])

        def get_inputs():
            return [torch.randn(16384, 16)]

        def get_init_inputs():
            return []
        """)
    shape = core.session(source).open({})
    shape.side.fill_from("task")
    contents = shape.side.contents(0)
    case = case_of(shape, own_result(shape, "task", contents))
    x, w = (_float32(one).reshape(16384, 16) for one in (contents[0], shape.inputs.state[0].values))
    backward = w.flip(-1).cumsum(-1).flip(-1)
    phases = (backward[:, :1] - backward + w) * torch.logspace(0, 3, 16384)[:, None]
    honest = _flat_on(shape, x * torch.sin(phases))
    before = compare(honest, case.expected[0])
    assert 1.0 < before.ratio < 8.0
    after = compare_all(shape, case, [honest])[0]
    assert after.ok or after.ratio < 0.6 * before.ratio


def _float32(values: Any) -> torch.Tensor:
    return torch.from_numpy(_host(values)).view(torch.float32)


def _flat_on(shape: OpenShape, values: torch.Tensor) -> Any:
    return values.reshape(-1).to("cuda") if shape.side.gpu else values.reshape(-1).numpy()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_second_pass_that_goes_well_asks_no_oracle(core: RefereeCore, dtype: str) -> None:
    """What small shapes expect is known from the first candidate, so that the next one costs no float64 at all."""
    source = task(f"""
        from kernelbench_tasks import Dim

        DIMS = {{"rows": Dim(1, 512, default=8)}}

        class Model(nn.Module):
            def forward(self, x):
                return torch.softmax(x, -1)

        def get_inputs(rows=8):
            return [torch.randn(rows, 300).to(torch.{dtype})]

        def get_init_inputs():
            return []
        """)
    other = "(x - x.amax(-1, keepdim=True)).float().softmax(-1).to(x.dtype)"
    proposal = replaced(source, ("torch.softmax(x, -1)", other))
    shapes = {"adversarial": [{"rows": rows} for rows in (5, 17, 64)]}
    request = Request(source, proposal, "screen", ("adversarial",), shapes)
    assert core.evaluate(request, lambda *_: None).verdict == "accepted"
    session = core.session(source)
    counting = Counting(session.process)
    try:
        verdict = core.evaluate(request, lambda *_: None)
    finally:
        del session.process.send
    assert verdict.verdict == "accepted", verdict.reason
    assert counting.seen == [protocol.BLOCK] * 3


# -- moved inputs ------------------------------------------------------------------------------------------------


def _outputs(model: torch.nn.Module, value: torch.Tensor, move: exact.Move | None) -> torch.Tensor:
    shape = Shape()
    shape.model = model
    return exact.outputs(shape, [value], None, "strict", move)[0]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.complex64])
def test_every_element_is_moved_by_one_step_either_way(dtype: torch.dtype, device: str) -> None:
    value = (torch.rand(300, 2, generator=torch.Generator().manual_seed(1)) + 1).to(device, dtype)
    step = 2.0**-52 if dtype is torch.float64 else 2.0**-23
    same = _outputs(torch.nn.Identity(), value, None)
    moved = _outputs(torch.nn.Identity(), value, exact.Move([step], 5, 1))
    back = _outputs(torch.nn.Identity(), value, exact.Move([step], 5, -1))
    up, down = moved - same, back - same
    assert torch.equal(up.real.sign(), -down.real.sign())
    if dtype is not torch.float64:  # there a step is as small as a rounding error of this comparison
        assert torch.allclose(
            (up / same / step).abs(), torch.ones((), dtype=torch.float64, device=device), atol=1e-6
        )
    assert 250 < int((up.real > 0).sum()) < 350
    assert bool((up.real[:, 0] * up.real[:, 1] < 0).all()), "a whole row was merely scaled"
    again = _outputs(torch.nn.Identity(), value, exact.Move([step], 5, 1))
    assert torch.equal(moved, again)
    assert not torch.equal(moved, _outputs(torch.nn.Identity(), value, exact.Move([step], 6, 1)))


def test_weights_are_moved_by_a_rounding_error_of_their_own_and_back() -> None:
    class Weights(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.single = torch.nn.Parameter(torch.rand(300, 2) + 1)
            self.narrow = torch.nn.Parameter((torch.rand(300, 2) + 1).bfloat16())
            self.bits = torch.nn.Parameter(
                (torch.rand(4, 4) + 1).to(torch.float8_e4m3fn), requires_grad=False
            )
            self.places = torch.nn.Parameter(torch.arange(4), requires_grad=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cat([self.single.double(), self.narrow.double()]) + 0 * x

    model, x = Weights(), torch.zeros(600, 2)
    shape = Shape()
    shape.model = model
    same, moved, after = (
        exact.outputs(shape, [x], None, "strict", move)[0]
        for move in (None, exact.Move([0.0], 5, 1, weights=2.0**-7), None)
    )
    distance = ((moved - same) / same).abs()
    assert torch.allclose(distance[:300], torch.tensor(2.0**-23, dtype=torch.float64), rtol=1e-6)
    assert torch.allclose(distance[300:], torch.tensor(2.0**-7, dtype=torch.float64), rtol=1e-6)
    assert torch.equal(same, after)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64])
def test_what_a_module_does_in_place_does_not_reach_the_inputs(dtype: torch.dtype) -> None:
    class Doubling(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.mul_(2)

    value = torch.arange(6).to(dtype)
    first, second = (_outputs(Doubling(), value, None) for _ in range(2))
    assert torch.equal(first, second) and torch.equal(value, torch.arange(6).to(dtype))
