"""A run's report: what is in it, and what a hostile folder can do to it."""

from __future__ import annotations

import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from agent.runs import curves, files, story
from agent.runs.files import RunUnknown, list_runs, read_run, run_in
from rl.data.__main__ import app as data_program
from rl.hacks import HackDatabase
from rl.report import main, write_scalars
from rl.reports.page import arms, arms_of
from tests.rl.run_folders import COMPARISON, make_run
from tests.rl.verdicts import rejected

import typer  # isort: skip


class Page(HTMLParser):
    """Tags, what they load, and the text between them."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loads: list[str] = []
        self.words = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loads += [value or "" for name, value in attrs if name in ("src", "href", "onerror", "onload")]

    def handle_data(self, data: str) -> None:
        self.words += f" {data}"


def report(*arguments: str | Path) -> Any:
    app = typer.Typer()
    app.command()(main)
    return CliRunner().invoke(app, [str(one) for one in arguments])


def test_a_report_holds_everything_and_loads_nothing(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    with HackDatabase(run / "hacks.journal") as hacks:
        cheating = rejected(
            "cheating", {"rule": "side_stream", "severity": "cheat", "evidence": "worked beside the clock"}
        )
        assert hacks.learn("class ModelNew: pass", cheating)
    said = report(run)
    assert said.exit_code == 0, said.output
    html = (run / "report.html").read_text()
    page = Page(html)
    assert not page.loads
    assert "script" not in page.tags
    assert "img" not in page.tags
    assert page.tags.count("svg") == 3
    assert "{{ 7*7 }}" in page.words
    for words in (
        "12 of 12",
        "Training loss",
        "side_stream",
        "0.8× before, 2.5× after",
        "+ # </style>",
        "- y = 2",
    ):
        assert words in page.words, words
    caught = page.words[page.words.index("What was caught") :]
    assert re.search(r"rejected: cheating .*?\s*2\s*4\s", caught, re.DOTALL)
    assert "has not been compared" in page.words


def test_comparisons_and_arms_are_tables(tmp_path: Path) -> None:
    run, other = make_run(tmp_path / "run"), make_run(tmp_path / "plain")
    (tmp_path / "found").mkdir()
    (tmp_path / "found" / "comparison.json").write_text(json.dumps(COMPARISON))
    (other / "comparison.json").write_text(json.dumps({**COMPARISON, "after": COMPARISON["before"]}))
    assert report(run, "--comparison", tmp_path / "found", "--ablation", other).exit_code == 0
    words = " ".join(Page((run / "report.html").read_text()).words.split())
    assert "0.9 1.8 2 [1.6, 2.4] gain" in words
    assert "no success before" in words
    assert "run 1.8 [1.7, 2] 2.4 [2.2, 2.6] not measured 24" in words
    assert "plain 0.9 [0.8, 1]" in words
    assert "before training 0.9" in words
    assert "rmsnorm: 1× before, 2× after" in words
    replay = tmp_path / "replay.json"
    claim = {
        "name": "P1",
        "measure": "mean, contrastive over sft",
        "value": 1.9,
        "low": 1.2,
        "high": 2.5,
        "holds": True,
    }
    replay.write_text(json.dumps({"arms": {"sft": COMPARISON["before"]}, "claims": [claim]}))
    assert report(run, "--ablation", replay).exit_code == 0
    words = " ".join(Page((run / "report.html").read_text()).words.split())
    assert "P1 mean, contrastive over sft 1.9 [1.2, 2.5] holds" in words


def test_mistakes_are_sentences(tmp_path: Path) -> None:
    said = report(tmp_path / "nothing")
    assert said.exit_code == 2
    run = make_run(tmp_path / "run")
    assert report(run, "--comparison", tmp_path).exit_code == 2
    assert report(run, "--ablation", tmp_path / "nowhere").exit_code == 2
    assert not (run / "report.html").exists()


def test_brackets_in_names_are_no_markup(tmp_path: Path) -> None:
    said = report(tmp_path / "[/b]")
    assert said.exit_code == 2, said.output
    assert "[/b] holds no run" in said.output
    run = make_run(tmp_path / "[" / "b]")
    said = report(run)
    assert said.exit_code == 0, said.output
    assert str(run / "report.html") in said.output
    said = report(run, "--ablation", tmp_path / "[/i]")
    assert said.exit_code == 2
    assert "[/i] holds no run" in said.output
    said = CliRunner().invoke(data_program, ["build", "--out", str(tmp_path / "rows"), "--held-out", "[/b]"])
    assert said.exit_code == 2, said.output
    assert "[/b]" in said.output


def test_arms_of_several_types_of_machine_say_which(tmp_path: Path) -> None:
    """A speedup means something on its machine alone."""
    other = {**COMPARISON, "machine": "NVIDIA L4"}
    assert [one.name for one in arms(arms_of({"one": COMPARISON, "two": COMPARISON, "none": {}}))] == [
        "one", "before training", "two"
    ]  # fmt: skip
    assert [one.name for one in arms(arms_of({"one": COMPARISON, "two": other, "none": {}}))] == [
        "one (NVIDIA H200)", "before training (NVIDIA H200)", "two (NVIDIA L4)", "before training (NVIDIA L4)"
    ]  # fmt: skip


def test_scalars_are_the_figures_of_the_run(tmp_path: Path) -> None:
    """As TensorBoard itself reads them."""
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run = make_run(tmp_path / "run")
    said = report(run, "--tensorboard", tmp_path / "events")
    assert said.exit_code == 0, said.output
    read = events.EventAccumulator(str(tmp_path / "events"), size_guidance={events.SCALARS: 0}).Reload()
    assert sorted(read.Tags()["scalars"]) == [
        f"contrastive/{name}" for name in ("hacks", "loss", "speedup_mean")
    ]
    found = {
        name: [(one.step, one.value) for one in read.Scalars(f"contrastive/{name}")]
        for name in ("loss", "hacks")
    }
    assert found["loss"] == [(step, pytest.approx(2.0 / step)) for step in range(1, 13)]
    assert found["hacks"] == [(step, step % 3) for step in range(1, 13)]


def test_scalars_need_the_package_and_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = run_in(make_run(tmp_path / "run"), "run")
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(Exception, match="pip install tensorboard"):
        write_scalars(found, tmp_path / "events")
    written: list[tuple[str, float, int]] = []

    class Writer:
        def __init__(self, folder: str) -> None: ...

        def add_scalar(self, name: str, value: float, step: int) -> None:
            written.append((name, value, step))

        def close(self) -> None: ...

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", type("Module", (), {"SummaryWriter": Writer}))
    assert write_scalars(found, tmp_path / "events") == len(written) == 36
    assert ("contrastive/loss", 2.0, 1) in written


def test_lines_that_are_none_are_passed_over_and_a_step_written_twice_counts_once(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", steps=2)
    strange: list[Any] = [
        {"step": 2, "loss": 0.5}, {"step": True}, {"step": 1e300, "loss": 1}, {"step": -1}, {"step": "3"}, [1], None,
        {"step": 3, "loss": "low", "reward_mean": True, "entropy": 1e31, "judged": 10**400},
    ]  # fmt: skip
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(
            "\n"
            + "".join(json.dumps(one) + "\n" for one in strange)
            + '{"step": 4, "loss": NaN}\n['
            + "[" * 5000
            + "\n"
        )
    found = run_in(folder, "run")
    assert [step.number for step in found.steps] == [1, 2, 3, 4]
    assert found.steps[1].figures["loss"] == 0.5
    assert set(found.steps[2].figures.values()) == {None}
    assert found.steps[3].figures["loss"] is None


def test_nothing_is_read_beyond_the_folder_or_the_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "runs"
    make_run(root / "cpu" / "sft")
    make_run(root / "alone")
    secret = make_run(tmp_path / "secret")
    (root / "linked").symlink_to(secret)
    (root / "inner").mkdir()
    (root / "inner" / "metrics.jsonl").symlink_to(secret / "metrics.jsonl")
    make_run(root / ".hidden")
    (root / "alone" / "checkpoint").mkdir()
    (root / "alone" / "checkpoint" / "config.json").write_text('{"model_type": "llama"}')
    make_run(root / "with space")
    assert {one.name for one in list_runs(root)} == {"alone", "cpu~sft"}
    for name in (
        "linked",
        "inner",
        "..",
        "../secret",
        "cpu/sft",
        "..~secret",
        "cpu~..",
        "",
        "a~b~c",
        "alone\n",
        "~alone",
    ):
        with pytest.raises(RunUnknown):
            read_run(root, name)
    assert read_run(root, "cpu~sft").overview.steps == 12
    (root / "alone" / "samples.jsonl").unlink()
    (root / "alone" / "samples.jsonl").symlink_to(secret / "samples.jsonl")
    assert read_run(root, "alone").samples == ()
    monkeypatch.setattr(files, "MOST_BYTES", 300)
    cut = read_run(root, "cpu~sft")
    assert "metrics.jsonl" in cut.cut
    steps = [step.number for step in cut.steps]
    assert steps[0] == 1
    assert steps[-1] == 12
    assert len(steps) < 6


def test_a_curve_keeps_its_peaks_and_its_ticks_are_round() -> None:
    points = [(step, 1.0 if step != 7777 else 50.0) for step in range(1, 20_001)]
    thin = curves.thinned(points)
    assert len(thin) <= 240
    assert (7777, 50.0) in thin
    assert [step for step, _ in thin] == sorted(step for step, _ in thin)
    assert curves.ticks_of(0.0, 1.7) == [0.0, 0.5, 1.0, 1.5, 2.0]
    assert curves.ticks_of(3.0, 3.0) == [3.0]
    svg = curves.curve_svg("loss", 'a "title" & <b>', [(1, -2.0), (2, 5.0)], from_zero=True)
    assert "&lt;b&gt;" in svg
    assert "nan" not in svg
    assert "nan" not in curves.curve_svg("loss", "t", [(1, 9e29), (5, -9e29)], from_zero=False)


def test_what_was_caught_is_counted_by_its_reason(tmp_path: Path) -> None:
    found = run_in(make_run(tmp_path / "run"), "run")
    (one,) = story.catches(found.samples)
    assert (one.times, one.first_step) == (2, 4)
