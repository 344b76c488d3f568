"""A build: what is decided, what is kept, and what a killed one loses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from evaluator.sources import TaskSource
from evaluator.verdict import Verdict, from_json
from kernelbench_tasks import catalog
from rl.data.build import Builder, Tally, journal_of, provenance_path
from rl.data.lowering import NotMade
from rl.data.proposals import Proposal
from rl.data.texts import as_asked, with_shown
from rl.errors import FleetLost
from rl.judges import Unjudged
from rl.rows import Row, read_rows, task_text, text_of_task
from tests.rl.verdicts import accepted, rejected

EVALUATED = {"rmsnorm": catalog.load("rmsnorm").source}
MODULE = """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return torch.cumsum(x, dim=-1) * {number} - torch.sigmoid(x)
"""


def source(number: int) -> str:
    return f"class ModelNew:\n    number = {number}\ncpp_fused_add_mul_0 = async_compile()\n"


def lead(
    number: int, task: TaskSource | None = None, made: list[int] | None = None, name: str = ""
) -> Proposal:
    def make() -> str:
        if made is not None:
            made.append(number)
        if number == 13:
            raise NotMade("a template kernel has no plain form")
        return source(number)

    of = task or TaskSource("chain", MODULE.format(number=number % 2))
    return Proposal(name or f"lead/{number}", of, "cpu", make, "compiler", "compiled", {"index": number})


class Judging:
    """Says of each candidate what `answers` says; `asked` is what it was asked."""

    def __init__(self, answers: Callable[[str], dict[str, Any]]) -> None:
        self.answers = answers
        self.asked: list[str] = []

    async def judge(self, task: TaskSource, source: str, *, whole: bool = False) -> Verdict:
        self.asked.append(source)
        return from_json(self.answers(source))

    def close(self) -> None:
        pass


class Looks:
    """Meanings as given, by the name of the task."""

    def __init__(self, **meanings: str) -> None:
        self.meanings = meanings

    def dims_of(self, task: TaskSource) -> Mapping[str, Any]:
        return {"rows": {"min": 1, "max": 64, "multiple_of": 4, "default": 8}}

    def meaning_of(self, task: TaskSource) -> str:
        return self.meanings.get(task.name, "")


def build(out: Path, leads: list[Proposal], judge: Judging, looks: Any = None) -> Tally:
    with ThreadPoolExecutor(1) as making, Builder(out, EVALUATED, judge, making, looks or Looks()) as builder:
        try:
            asyncio.run(builder.run(leads, 2))
        finally:
            builder.export(0)
        return builder.tally


def test_only_what_the_referee_accepts_becomes_a_row(tmp_path: Path) -> None:
    words = {
        source(0): accepted(2.0, 0.5, 4.0),
        source(1): rejected("incorrect"),
        source(2): {**accepted(3.0), "findings": [{"rule": "decoy_kernel", "severity": "warning"}]},
        source(3): accepted(),
    }
    tally = build(
        tmp_path / "rows.jsonl", [lead(number) for number in (0, 1, 2, 3, 13)], Judging(words.__getitem__)
    )
    assert tally.outcomes == {"accepted": 1, "rejected": 3, "not made": 1}
    (row,) = read_rows(tmp_path / "rows.jsonl")
    assert row.speedup == 1.58
    assert row.machine == "NVIDIA H200"
    # This one is asked without them; what was measured is kept.
    assert (row.dims, row.shapes) == ("", "")
    measured = journal_of(tmp_path / "rows.jsonl").read_text()
    assert "- rows: 1 to 64, a multiple of 4" in measured
    assert "- rows=1: 10.0 us (compile)" in measured
    assert row.design.startswith("One kernel computes: add mul.")
    (line,) = map(json.loads, provenance_path(tmp_path / "rows.jsonl").read_text().splitlines())
    assert line["id"] == row.id
    assert line["about"] == {"index": 0}
    assert "BSD-3-Clause" in line["licence"]


def test_a_module_to_evaluate_on_is_left_out_by_its_text_or_by_what_it_computes(tmp_path: Path) -> None:
    copied = TaskSource("copy", EVALUATED["rmsnorm"].replace("torch.randn", "torch.rand"))
    other = TaskSource("other", MODULE.format(number=3))
    judge = Judging(lambda _: accepted(2.0))
    out = tmp_path / "rows.jsonl"
    tally = build(out, [lead(0, copied), lead(1, other), lead(2)], judge, Looks(rmsnorm="m", other="m"))
    assert tally.outcomes == {"overlap": 2, "accepted": 1}
    assert [row.id for row in read_rows(out)] == ["lead/2"]
    assert judge.asked == [source(2)]


def test_tasks_that_are_evaluated_on_later_leave_the_rows_then(tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    build(out, [lead(0), lead(1)], Judging(lambda _: accepted(2.0)), Looks(chain=""))
    assert len(read_rows(out)) == 2
    evaluated = {"chain": MODULE.format(number=0)}
    with ThreadPoolExecutor(1) as making, Builder(out, evaluated, Judging(dict), making, Looks()) as builder:
        assert builder.export(0) == 0


def test_the_same_program_for_the_same_module_is_one_row(tmp_path: Path) -> None:
    judge = Judging(lambda _: accepted(2.0))
    assert build(tmp_path / "rows", [lead(0), lead(0, name="again"), lead(1)], judge).outcomes == {
        "accepted": 2,
        "repeated": 1,
    }
    assert len(judge.asked) == 2


def test_a_build_that_was_stopped_goes_on_behind_its_last_decision(tmp_path: Path) -> None:
    made: list[int] = []

    def stops_at_two(text: str) -> dict[str, Any]:
        if text == source(2):
            raise RuntimeError("killed")
        return accepted(2.0)

    out = tmp_path / "rows.jsonl"
    leads = [lead(number, made=made) for number in range(4)]
    with pytest.raises(ExceptionGroup):
        build(out, leads, Judging(stops_at_two))
    kept = len(read_rows(out))
    assert kept >= 1
    judge = Judging(lambda _: accepted(2.0))
    tally = build(out, leads, judge)
    assert (tally.known, tally.outcomes["accepted"]) == (kept, 4 - kept)
    assert sorted(row.id for row in read_rows(out)) == [f"lead/{number}" for number in range(4)]
    assert source(0) not in judge.asked


def test_what_nobody_judged_is_tried_again_by_the_next_run(tmp_path: Path) -> None:
    def lost(text: str) -> dict[str, Any]:
        if text == source(1):
            raise Unjudged("the referee died", again=True)
        return rejected("not_judged") if text == source(2) else accepted(2.0)

    out = tmp_path / "rows.jsonl"
    judge = Judging(lost)
    tally = build(out, [lead(number) for number in range(3)], judge)
    assert tally.outcomes == {"accepted": 1}
    assert tally.missing == {"the referee died": 1, "not_judged": 1}
    assert judge.asked.count(source(1)) == 2
    assert (
        build(out, [lead(number) for number in range(3)], Judging(lambda _: accepted(2.0))).outcomes[
            "accepted"
        ]
        == 2
    )


def test_where_nobody_judges_the_build_ends(tmp_path: Path) -> None:
    def gone(_: str) -> dict[str, Any]:
        raise Unjudged("no service answers", again=True, gone=True)

    judge = Judging(gone)
    with pytest.raises(FleetLost, match="no service answers"):
        build(tmp_path / "rows", [lead(number) for number in range(50)], judge)
    assert len(judge.asked) < 12


def row(number: int, speedup: float | None, task: str = "t") -> Row:
    return Row(
        id=str(number),
        task=task,
        source=task,
        device="cpu",
        candidate=source(number),
        machine="m",
        speedup=speedup,
    )


def test_rows_show_slower_files_that_differ_and_always_the_same_ones() -> None:
    rows = [row(number, 0.5 + 0.1 * number) for number in range(12)] + [row(99, 9.0, "alone"), row(98, None)]
    shown = with_shown(rows, 0)
    assert shown == with_shown(rows, 0)
    assert shown != with_shown(rows, 1)
    for one in shown:
        assert len(one.shown) in (0, 2)
        assert all(each.speedup < (one.speedup or 0) for each in one.shown)
        if one.shown:
            assert one.shown[1].speedup > 1.05 * one.shown[0].speedup
    assert not shown[-1].shown
    assert not shown[-2].shown
    assert 3 <= sum(bool(one.shown) for one in shown) <= 10


def test_half_of_the_rows_are_asked_as_later_stages_ask() -> None:
    rows = [
        row(number, 2.0).model_copy(update={"dims": "- rows: 1 to 64", "shapes": "- rows=1: 10.0 us"})
        for number in range(40)
    ]
    asked = as_asked(rows, 0)
    assert asked == as_asked(rows, 0)
    assert asked != as_asked(rows, 1)
    plain = [one for one in asked if not one.dims]
    assert 10 <= len(plain) <= 30
    for one in asked:
        assert bool(one.dims) == bool(one.shapes)
    later = text_of_task("t", "", "", "cpu")
    assert {task_text(one) for one in plain} == {later}
    assert all(task_text(one) != later for one in asked if one.dims)
