"""Two policies at equal evaluator budget: what is spent, what is counted, and what may be said."""

from __future__ import annotations

import asyncio
import json
import re
import resource
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from agent.messages import Message
from evaluator import verdict as verdicts
from evaluator.sources import TaskSource
from evaluator.verdict import Verdict, from_json
from kernelbench_tasks import catalog
from rl import evaluate
from rl.comparison import Cell, compared
from rl.config import ExemplarPart, FleetPart, load
from rl.errors import ConfigError, FleetLost
from rl.evaluate import Budget, Comparison, compare, fleet_of
from rl.intervals import mean_of, ratio_of_means
from rl.judges import Unjudged
from rl.rows import Row, write_rows
from rl.shown import drawing_of, draws_of
from tests.rl.verdicts import accepted, rejected

#: Verdicts here name no version of a referee, as a service's may not be ours.
CPU = FleetPart(device="cpu", url="http://127.0.0.1:9")


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl.fleet._PAUSE_S", 0.01)
    monkeypatch.setattr("rl.fleet._FIRST_PAUSE_S", 0.01)
    for interval in (ratio_of_means, mean_of):  # thousands of resamples by default
        monkeypatch.setattr(interval, "__defaults__", (200,))


TASKS = [TaskSource("one", "class Model: ..."), TaskSource("two", "class Model: pass")]


def file(speed: float, number: int) -> str:
    return f"class ModelNew:\n    speed = {speed}\n    number = {number}\n"


class Writer:
    """Writes files whose speed is cut into them; `speeds` in turn, forever."""

    def __init__(self, name: str, *speeds: float, different: int = 10**6) -> None:
        self.name, self.speeds, self.different = name, speeds, different
        self.identity = ""
        self.asked: list[tuple[int, int]] = []
        self.prompts: list[str] = []

    def sample(self, messages: Sequence[Message], count: int, seed: int) -> list[tuple[str, bool]]:
        assert "class Model" in messages[-1].content
        begin = sum(number for number, _ in self.asked)
        self.prompts.append(messages[-1].content)
        self.asked.append((count, seed))
        found = []
        for place in range(begin, begin + count):
            speed = self.speeds[place % len(self.speeds)]
            text = "no code" if speed < 0 else f"```python\n{file(speed, place % self.different)}```"
            found.append((text, True))
        return found


class Judging:
    def __init__(self) -> None:
        self.asked: list[str] = []

    async def judge(self, task: TaskSource, source: str, *, whole: bool = False) -> Verdict:
        self.asked.append(source)
        speed = float(source.split("speed = ")[1].split()[0])
        if speed == 99.0:
            raise Unjudged("no service answers", again=True, gone=True)
        return from_json(accepted(speed) if speed else rejected("incorrect"))

    def close(self) -> None:
        pass


def cell(folder: Path, policy: Writer, budget: Budget, judge: Judging | None = None) -> Cell:
    with Comparison(folder, judge or Judging(), CPU, budget) as comparison:
        return asyncio.run(comparison.cell(policy, TASKS[0], 0))


def test_failures_count_as_nothing_and_answers_without_a_file_cost_nothing(tmp_path: Path) -> None:
    judge = Judging()
    found = cell(tmp_path, Writer("a", 2.0, 0.0, -1.0, 1.0), Budget(4, 4, 32, 1), judge)
    assert found.mean == 0.75
    assert found.best == 2.0
    assert (found.judged, found.written, found.accepted) == (4, 8, 3)


def test_a_policy_that_repeats_itself_gets_as_many_evaluations_and_no_more_than_the_limit(
    tmp_path: Path,
) -> None:
    judge = Judging()
    found = cell(tmp_path, Writer("a", 2.0, different=2), Budget(4, 4, 12, 1), judge)
    assert (found.judged, found.written) == (2, 12)
    assert len(judge.asked) == 2


def test_what_is_beyond_the_budget_is_not_the_best(tmp_path: Path) -> None:
    found = cell(tmp_path, Writer("a", 1.0, 1.0, 2.9), Budget(2, 3, 3, 1))
    assert found.best == 1.0
    assert found.mean == pytest.approx(4.9 / 3)


def test_a_suspicious_speed_is_measured_again(tmp_path: Path) -> None:
    judge = Judging()
    assert cell(tmp_path, Writer("a", 7.0), Budget(1, 1, 1, 1), judge).best == 7.0
    assert len(judge.asked) == 2


def test_what_nobody_judged_is_in_no_figure(tmp_path: Path) -> None:
    found = cell(tmp_path, Writer("a", 99.0, 2.0), Budget(2, 4, 4, 1))
    assert (found.mean, found.missing, found.judged) == (2.0, 2, 2)
    with pytest.raises(FleetLost, match="no service answers"):
        cell(tmp_path / "other", Writer("b", 99.0), Budget(1, 2, 2, 1))


def test_a_comparison_that_was_killed_asks_nobody_twice(tmp_path: Path) -> None:
    budget = Budget(2, 2, 4, 2)
    before, after = Writer("a", 1.0), Writer("b", 2.0)
    with Comparison(tmp_path, Judging(), CPU, budget) as comparison:
        first = asyncio.run(compare(comparison, before, after, TASKS, budget))
    judge, silent = Judging(), Writer("a", 5.0)
    with Comparison(tmp_path, judge, CPU, budget) as comparison:
        again = asyncio.run(compare(comparison, silent, Writer("b", 5.0), TASKS, budget))
    assert again == {**first, "machine": first["machine"]}
    assert not silent.asked
    assert not judge.asked
    # both policies draw with the same random numbers
    assert [seed for _, seed in before.asked] == [seed for _, seed in after.asked]
    assert len({seed for _, seed in before.asked}) == 4


def cells(policy: str, *rows: tuple[float, ...]) -> list[Cell]:
    return [
        Cell(policy, f"task {place}", seed, value, value, 8, 8, 0, 8, f"best of {policy}")
        for seed, row in enumerate(rows)
        for place, value in enumerate(row)
    ]


def test_what_was_judged_on_another_device_is_judged_anew(tmp_path: Path) -> None:
    budget, judge = Budget(2, 2, 2, 1), Judging()
    cell(tmp_path, Writer("a", 2.0), budget, judge)
    on_a_gpu = Writer("a", 1.8)
    with Comparison(tmp_path, judge, CPU.model_copy(update={"device": "cuda"}), budget) as comparison:
        assert asyncio.run(comparison.cell(on_a_gpu, TASKS[0], 0)).mean == 1.8
    again = Writer("a", 5.0)
    assert (cell(tmp_path, again, budget, judge).mean, again.asked, len(judge.asked)) == (2.0, [], 4)


def test_a_gain_is_one_only_where_the_whole_interval_is() -> None:
    before = cells("a", (1.0, 1.1, 0.9), (1.05, 1.0, 0.95))
    for factor, word in ((1.5, "gain"), (0.6, "loss")):
        after = [
            Cell(**{**vars(one), "mean": one.mean * factor, "best": one.best * factor}) for one in before
        ]
        found = compared(before, after)["after_over_before"]["mean"]
        assert found["word"] == word
        assert found["ratio"]["value"] == pytest.approx(factor)
    mixed = compared(before, cells("b", (2.0, 0.5, 1.0), (0.6, 1.9, 1.0)))
    assert mixed["after_over_before"]["best"]["word"] == "unknown"
    nothing = compared(cells("a", (0.0, 0.0)), cells("b", (1.0, 1.0)))
    assert nothing["after_over_before"]["mean"] == {"ratio": None, "word": "no success before"}


def test_cells_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="not every task"):
        compared(cells("a", (1.0, 1.0))[:1] + cells("a", (1.0, 1.0), (1.0, 1.0))[3:], cells("a", (1.0,)))
    with pytest.raises(ConfigError, match="most_samples"):
        Budget(8, 8, 4, 1)


def test_a_decoy_is_a_failure_as_it_is_in_training(tmp_path: Path) -> None:
    class Finding(Judging):
        async def judge(self, task: TaskSource, source: str, *, whole: bool = False) -> Verdict:
            finding = verdicts.Finding("decoy_kernel", "warning", "nothing computed")
            return replace(await super().judge(task, source), findings=(finding,))

    found = cell(tmp_path, Writer("a", 2.0), Budget(1, 1, 1, 1), Finding())
    assert (found.mean, found.best, found.accepted, found.missing) == (0.0, 0.0, 0, 0)


def test_answers_of_other_checkpoints_or_settings_are_not_taken_for_these(tmp_path: Path) -> None:
    """A checkpoint that was trained on stands at the same path."""
    budget = Budget(1, 1, 1, 1)
    with Comparison(tmp_path, Judging(), CPU, budget) as comparison:
        asyncio.run(comparison.cell(Writer("a", 1.0), TASKS[0], 0))
    trained = Writer("a", 2.0)
    trained.identity = "trained on"
    with Comparison(tmp_path, Judging(), CPU, budget) as comparison:
        assert asyncio.run(comparison.cell(trained, TASKS[0], 0)).mean == 2.0
    assert len(trained.asked) == 1


class Elsewhere(Judging):
    """A referee of some type of machine, which may be another for a word of rejection."""

    def __init__(self, machine: str, rejects: str = "") -> None:
        super().__init__()
        self.machine, self.rejects = machine, rejects

    async def judge(self, task: TaskSource, source: str, *, whole: bool = False) -> Verdict:
        found = await super().judge(task, source)
        if self.rejects:
            found = from_json(rejected(self.rejects))
        return replace(found, environment={"device": "cuda", "device_name": self.machine})


def compared_at(folder: Path, judge: Judging, before: float = 1.0, after: float = 2.0) -> dict[str, Any]:
    """The policy before writes the same in all comparisons."""
    budget = Budget(1, 1, 1, 1)
    with Comparison(folder, judge, CPU, budget) as comparison:
        policies = Writer("a", before), Writer("b", after)
        return asyncio.run(compare(comparison, *policies, TASKS[:1], budget))


def test_verdicts_of_two_types_of_machine_are_not_compared(tmp_path: Path) -> None:
    assert compared_at(tmp_path / "one", Elsewhere("NVIDIA H100"))["machine"] == "NVIDIA H100"
    # One that was trained on another type is evaluated where the referee is, in a folder of its own.
    assert compared_at(tmp_path / "two", Elsewhere("NVIDIA L4"))["machine"] == "NVIDIA L4"

    class Moving(Elsewhere):
        async def judge(self, task: TaskSource, source: str, *, whole: bool = False) -> Verdict:
            found = await super().judge(task, source)
            self.machine = "NVIDIA L4"
            return found

    with pytest.raises(ConfigError, match="NVIDIA L4 and of NVIDIA H100 in one folder"):
        compared_at(tmp_path / "both", Moving("NVIDIA H100"))
    # The one that was refused is not kept, and the folder goes on where it was begun.
    assert compared_at(tmp_path / "both", Elsewhere("NVIDIA H100"))["machine"] == "NVIDIA H100"


@pytest.mark.parametrize(("word", "matters"), [("timeout", True), ("cheating", False)])
def test_a_rejection_counts_on_its_machine_where_it_may_be_the_machine_s(
    tmp_path: Path, word: str, matters: bool
) -> None:
    """What is too slow there may not be here; a cheat is one everywhere."""
    budget = Budget(1, 1, 1, 1)
    with Comparison(tmp_path, Elsewhere("NVIDIA L4", word), CPU, budget) as comparison:
        assert asyncio.run(comparison.cell(Writer("a", 1.0), TASKS[0], 0)).best == 0.0
    with Comparison(tmp_path, Elsewhere("NVIDIA H100"), CPU, budget) as comparison:
        asyncio.run(comparison.cell(Writer("a", 1.0), TASKS[0], 0))
        if matters:
            with pytest.raises(ConfigError, match="one type of machine"):
                asyncio.run(comparison.cell(Writer("b", 2.0), TASKS[0], 0))
        else:
            assert asyncio.run(comparison.cell(Writer("b", 2.0), TASKS[0], 0)).best == 2.0


def test_verdicts_at_other_shapes_are_not_taken_for_these(tmp_path: Path) -> None:
    budget, judge = Budget(1, 1, 1, 1), Judging()
    for rows in (8, 16, 8):
        fleet = CPU.model_copy(update={"shapes": {"visible": ({"rows": rows},)}})
        with Comparison(tmp_path, judge, fleet, budget) as comparison:
            asyncio.run(comparison.cell(Writer("a", 1.0), TASKS[0], 0))
    assert len(judge.asked) == 2


CONFIG = Path(__file__).parents[2] / "rl" / "configs" / "cpu.yaml"


def test_who_judges_is_as_the_config_says_and_the_command_line_wins() -> None:
    stages = load(CONFIG)
    last = stages[-1].fleet  # type: ignore[union-attr]
    assert fleet_of(stages) == last
    assert (last.device, last.deadline_s, last.width) == ("cpu", 120.0, 1)
    assert last.shapes is not None
    assert fleet_of([]) == FleetPart()
    assert fleet_of(stages[:1]) == FleetPart()  # supervised training has nothing judged
    given = fleet_of(stages, "cuda", "http://127.0.0.1:8000", 4)
    assert (given.device, given.url, given.width, given.local_referees) == (
        "cuda", "http://127.0.0.1:8000", 4, 4
    )  # fmt: skip
    assert given.shapes == last.shapes
    served = load(CONFIG.with_name("contrastive.yaml"))
    assert (fleet_of(served).url, fleet_of(served).width) == ("http://127.0.0.1:8000", 4)
    assert fleet_of(served, url="").url is None
    # Checkpoints are compared at all shapes, here or by a service.
    looking = load(CONFIG.with_name("smollm2_contrastive.yaml"))
    assert fleet_of(looking, url="http://127.0.0.1:8000").first_look is fleet_of(looking).first_look is None


def rows(path: Path, *machines: str) -> Path:
    task = catalog.load("softmax")
    write_rows(
        path,
        [
            Row(
                id=f"{number}", task="softmax", source=task.source, device="cpu",
                candidate=file(1.0 + number, 1000 + number), machine=machine, speedup=1.0 + number,
            )
            for number, machine in enumerate(machines)
        ],
    )  # fmt: skip
    return path


def test_both_are_shown_the_same_exemplars_and_what_was_written_without_is_kept_apart(tmp_path: Path) -> None:
    task = TaskSource("softmax", catalog.load("softmax").source)
    path = rows(tmp_path / "rows.jsonl", "here", "here", "here")
    budget = Budget(1, 1, 2, 2)
    draws = draws_of(path, [task], "here", ExemplarPart(), budget.seeds)
    with Comparison(tmp_path / "out", Judging(), CPU, budget) as comparison:
        plain = Writer("a", 1.0)
        assert asyncio.run(compare(comparison, plain, Writer("b", 1.0), [task], budget))["exemplars"] == 0
    before, after = Writer("a", 1.0), Writer("b", 1.0)
    with Comparison(tmp_path / "out", Judging(), CPU, budget, draws) as comparison:
        assert asyncio.run(compare(comparison, before, after, [task], budget))["exemplars"] == 2
    assert before.prompts == after.prompts
    assert len(before.prompts) == len(plain.prompts) == 2
    for prompt in before.prompts:
        assert len(re.findall(r"number = 100\d", prompt)) == 2
    assert not any("number = 100" in prompt for prompt in plain.prompts)


def test_rows_of_other_machines_and_of_other_tasks_are_not_shown(tmp_path: Path) -> None:
    softmax = TaskSource("softmax", catalog.load("softmax").source)
    path = rows(tmp_path / "rows.jsonl", "here", "there", "here")
    found = draws_of(path, [softmax], "here", ExemplarPart(), 4)
    assert {round(one.speedup, 6) for draw in found.values() for one in draw.shown} == {1.0, 3.0}
    with pytest.raises(ConfigError, match="rows of here and of there"):
        draws_of(path, [softmax], None, ExemplarPart(), 1)
    with pytest.raises(ConfigError, match="no row of softmax with a speedup on nowhere"):
        draws_of(path, [softmax], "nowhere", ExemplarPart(), 1)
    with pytest.raises(ConfigError, match="no row of one with a speedup"):
        draws_of(path, [softmax, TASKS[0]], "here", ExemplarPart(), 1)
    stage = load(CONFIG)[-1]
    without = stage.model_copy(update={"exemplars": ExemplarPart(draw="none", dropout=1.0, count=1)})
    assert drawing_of([without]) == ExemplarPart(draw="buckets", dropout=0.0, count=1)


class Asked:
    """The command with policies and referees that were made up; what it made them with."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, judge: Judging) -> None:
        self.fleets: list[FleetPart] = []
        speeds = {"a": 1.0, "b": 2.0}

        def judged_by(fleet: FleetPart, work_dir: Path | None) -> Judging:
            self.fleets.append(fleet)
            return judge

        monkeypatch.setattr(evaluate, "Checkpoint", lambda path, **_: Writer(path, speeds[path]))
        monkeypatch.setattr(evaluate, "judge_of", judged_by)

    def __call__(self, *arguments: str | Path) -> Any:
        app = typer.Typer()
        app.command()(evaluate.main)
        return CliRunner().invoke(app, ["a", "b", *map(str, arguments)])


def test_the_command_asks_whom_the_config_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = Asked(monkeypatch, Judging())
    small = ("--judged", "1", "--samples", "1", "--seeds", "1")
    said = command("--config", CONFIG, "--out", tmp_path, *small)
    assert said.exit_code == 0, said.output
    found = json.loads((tmp_path / "comparison.json").read_text())
    assert {one["task"] for one in found["cells"]} == {"rmsnorm"}
    said = command(
        "--config", CONFIG, "--device", "cuda", "--width", "2", "--out", tmp_path / "other", *small
    )
    assert said.exit_code == 0, said.output
    assert command.fleets[0] == load(CONFIG)[-1].fleet  # type: ignore[union-attr]
    assert (command.fleets[1].device, command.fleets[1].width) == ("cuda", 2)


def test_what_is_wrong_and_what_can_go_on_end_differently(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge = Judging()
    command = Asked(monkeypatch, judge)
    small = ("--judged", "1", "--samples", "1", "--seeds", "1", "--out", str(tmp_path / "out"))
    for wrong in (
        ["--held-out", "[/b]"], ["--held-out", "softmax", "--device", "[/b]"], ["--config", "[/b]"], [],
        ["--held-out", "softmax", "--device", "cpu", "--exemplars", "[/b]"],
    ):  # fmt: skip
        said = command(*wrong, *small)
        assert said.exit_code == 2, (wrong, said.output)
        assert ("[/b]" in said.output) == bool(wrong)
    gone = Asked(monkeypatch, Gone())
    said = gone("--held-out", "softmax", "--device", "cpu", *small)
    assert said.exit_code == 75, said.output
    assert "no service answers" in said.output
    assert "the same command goes on" in said.output
    assert not (tmp_path / "out" / "comparison.json").exists()
    assert Asked(monkeypatch, judge)("--held-out", "softmax", "--device", "cpu", *small).exit_code == 0
    assert (tmp_path / "out" / "comparison.json").exists()


class Gone(Judging):
    async def judge(self, task: TaskSource, source: str, *, whole: bool = False) -> Verdict:
        raise Unjudged("no service answers", again=True, gone=True)


@contextmanager
def full_disk(most_bytes: int) -> Iterator[None]:
    """No file may grow beyond so many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)


def test_a_full_disk_leaves_the_comparison_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    judge = Judging()
    command = Asked(monkeypatch, judge)
    asked = ("--held-out", "softmax", "--device", "cpu", "--judged", "1", "--samples", "1", "--seeds", "1")
    assert command(*asked, "--out", tmp_path / "out").exit_code == 0
    path = tmp_path / "out" / "comparison.json"
    before, judged = path.read_bytes(), len(judge.asked)
    assert len(before) > 200
    with full_disk(200):  # what was judged stands in journals that need not grow
        said = command(*asked, "--out", tmp_path / "out")
        assert len(judge.asked) == judged
        other = command(*asked, "--out", tmp_path / "other")
    assert (said.exit_code, other.exit_code) == (75, 75), said.output + other.output
    assert "comparison.json cannot be written" in said.output
    assert path.read_bytes() == before
    assert sorted(one.name for one in path.parent.iterdir()) == [
        "answers-cpu.journal", "comparison.json", "verdicts-cpu.journal"
    ]  # fmt: skip
    assert command(*asked, "--out", tmp_path / "other").exit_code == 0
