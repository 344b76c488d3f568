"""What `verify` concludes from figures, and that its command ends as a CI job needs it to."""

from __future__ import annotations

import io
import json
import random
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from agent.upkeep.reading import ReadBundle, Recorded, read_bundle
from agent.upkeep.verifying import conclude
from evaluator.client import Referee
from evaluator.sources import TaskSource
from evaluator.verdict import from_json
from services.cli import app
from services.commands.verify import show
from tests.agent.upkeep.bundles import row, write
from tests.services.service import ROOT, WRONG, Service

HERE = {"device": "cpu", "device_name": "a CPU", "threads": 2, "torch": "2.13", "harness": "7"}


def bundle(
    *speedups: float, half: float = 0.005, labels: tuple[str, ...] = (), **environment: Any
) -> ReadBundle:
    recorded = tuple(
        Recorded({"n": index}, speedup, speedup * (1 - half), speedup * (1 + half))
        for index, speedup in enumerate(speedups)
    )
    return ReadBundle("job", "cpu", TaskSource("t", ""), "", recorded, {**HERE, **environment}, labels)


def verdict(*speedups: float | None, half: float = 0.005, word: str = "accepted") -> dict[str, Any]:
    rows = [row({"n": index}, speedup, half) for index, speedup in enumerate(speedups) if speedup]
    return {"verdict": word, "reason": "as it is", "shapes": rows, "environment": HERE, "labels": []}


def test_the_same_figures_hold() -> None:
    found = conclude(bundle(2.0, 1.5), [from_json(verdict(2.01, 1.49))], 0.02)
    assert found.result == "holds"
    assert found.against == "evidence"
    assert [shape.status for shape in found.shapes] == ["holds", "holds"]
    assert not any(shape.stale for shape in found.shapes)
    assert "nothing of the platform has changed" in " ".join(found.sentences)
    assert json.loads(json.dumps(found.as_json()))["result"] == "holds"


def test_one_shape_that_fell_is_a_regression_however_well_the_others_do() -> None:
    found = conclude(bundle(2.0, 2.0, 2.0), [from_json(verdict(2.4, 2.4, 1.8))], 0.02)
    assert found.result == "regressed"
    assert [shape.status for shape in found.shapes] == ["faster", "faster", "slower"]
    assert all(shape.stale for shape in found.shapes), (
        "a figure that rose describes the shape no more than one that fell"
    )
    assert "slower at 1 of 3" in found.sentences[0]
    assert conclude(bundle(2.0, 2.0, 2.0), [from_json(verdict(2.4, 2.4, 1.8))], 0.2).result == "holds"


def test_a_fall_that_the_second_look_does_not_see_accuses_nobody() -> None:
    found = conclude(bundle(2.0), [from_json(verdict(1.8)), from_json(verdict(1.99))], 0.02)
    assert found.shapes[0].status == "undecided"
    assert found.shapes[0].looks == 2
    assert found.result == "unmeasured"
    assert (
        conclude(bundle(2.0), [from_json(verdict(1.8)), from_json(verdict(1.81))], 0.02).result == "regressed"
    )


def test_noise_is_said_to_be_noise() -> None:
    found = conclude(bundle(2.0), [from_json(verdict(2.0, half=0.1))], 0.02)
    assert found.result == "unmeasured"
    assert "too noisy" in found.sentences[0]


@pytest.mark.parametrize(
    ("word", "result"),
    [
        ("incorrect", "regressed"),
        ("runtime_error", "regressed"),
        ("cheating", "regressed"),
        ("not_judged", "unmeasured"),
        ("timeout", "unmeasured"),
        ("task_rejected", "unmeasured"),
    ],
)
def test_a_verdict_other_than_accepted(word: str, result: str) -> None:
    found = conclude(bundle(2.0), [from_json(verdict(word=word))], 0.02)
    assert found.result == result
    assert word in found.sentences[0]
    assert found.shapes[0].status == "unmeasured"


def test_shapes_that_were_not_timed_are_not_passed_over() -> None:
    found = conclude(bundle(2.0, 2.0), [from_json(verdict(2.0, None))], 0.02)
    assert found.result == "unmeasured"
    assert "1 of 2" in found.sentences[0]
    assert conclude(bundle(), [], 0.02).result == "unmeasured"


def test_another_type_of_machine_says_so_and_is_held_against_its_own_baseline() -> None:
    moved = bundle(3.0, device_name="another CPU")
    found = conclude(moved, [from_json(verdict(1.5))], 0.02)
    assert found.result == "holds", "1.5 times as fast as the best baseline here, whatever it was there"
    assert found.against == "baseline"
    assert found.shapes[0].stale
    assert "device a" in found.changes[0]
    assert "its figures do not hold here" in " ".join(found.sentences)
    assert conclude(moved, [from_json(verdict(0.9))], 0.02).result == "regressed"
    assert conclude(bundle(3.0, threads=4), [from_json(verdict(1.5))], 0.02).against == "baseline"


def test_figures_of_another_version_of_the_referee_are_not_compared() -> None:
    found = conclude(bundle(3.0, harness="5"), [from_json(verdict(1.5))], 0.02)
    assert found.against == "baseline"
    assert "another version of the referee" in " ".join(found.sentences)


def test_another_torch_is_named_and_compared() -> None:
    found = conclude(bundle(2.0, torch="2.11", driver="580"), [from_json(verdict(2.0))], 0.02)
    assert found.against == "evidence"
    assert found.changes == ("driver 580 -> unknown", "torch 2.11 -> 2.13")


def test_people_see_the_shapes_and_what_changed() -> None:
    console = Console(width=160, file=io.StringIO(), color_system=None)
    odd = replace(bundle(2.0, 2.0, torch="2.11"), job="[red]x")
    show(console, conclude(odd, [from_json(verdict(2.0, 1.5))], 0.02))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    for words in (
        "regressed",
        "slower at 1 of 2 shapes",
        "changed: torch 2.11 -> 2.13",
        "1.50x (1.49-1.51)",
        "slower, stale",
    ):
        assert words in text


def test_kernels_that_no_longer_run_are_told() -> None:
    words = " ".join(conclude(bundle(1.0, labels=("own_kernel",)), [from_json(verdict(1.0))], 0.02).sentences)
    assert "kernelwright_explain" in words


@pytest.mark.parametrize(("ran", "result"), [(["library_call"], "regressed"), (["own_kernel"], "holds")])
def test_a_module_that_was_watched_and_runs_the_reference_does_not_hold(ran: list[str], result: str) -> None:
    fell_back = [
        {"rule": "fallback_ran", "severity": "warning", "evidence": "none of them was seen to run at n=0"}
    ]
    now = {**verdict(1.0), "labels": ran, "findings": fell_back}
    found = conclude(bundle(1.0, labels=("own_kernel",)), [from_json(now)], 0.02)
    assert found.result == result
    assert ("runs the reference here" in found.sentences[0]) is (result == "regressed")


def measured(generator: random.Random, truth: float, half: float) -> float:
    return truth * (1 + generator.gauss(0, half / 1.96))


@pytest.mark.parametrize(("truth", "least", "most"), [(1.0, 0.0, 0.06), (0.9, 0.98, 1.0)])
def test_sixteen_sound_shapes_are_seldom_accused_and_sixteen_slower_ones_always(
    truth: float, least: float, most: float
) -> None:
    """With a margin of zero and intervals that are honest, at most 5 % of sound bundles may be called slower."""
    generator = random.Random(1)
    regressed = 0
    for _ in range(400):
        then = [measured(generator, 2.0, 0.02) for _ in range(16)]
        now = [measured(generator, 2.0 * truth, 0.02) for _ in range(16)]
        regressed += (
            conclude(bundle(*then, half=0.02), [from_json(verdict(*now, half=0.02))], 0.0).result
            == "regressed"
        )
    assert least <= regressed / 400 <= most


def run(tmp_path: Path, *words: str, timeout: float = 280) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "services.cli", "verify", *words, "--work-dir", str(tmp_path / "work")],
        capture_output=True,
        text=True,
        timeout=timeout,
        cwd=ROOT,
        env=Service(tmp_path / "data").environment,
        check=False,
    )


def run_here(*words: str) -> Result:
    """The same command in this process."""
    return CliRunner().invoke(app, ["verify", *words], env={"COLUMNS": "200"})


def told(done: subprocess.CompletedProcess[str] | Result) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(done.stdout)
    if found["verdict"] == "not_judged":
        pytest.skip("nothing can be timed here now")
    return found


@pytest.mark.alone
@pytest.mark.slow
def test_the_command_measures_anew(tmp_path: Path) -> None:
    """The same bundle once with a claim far below the truth and once with one far above it."""
    modest = write(tmp_path / "modest", (0.2,), half=0.3)
    done = run(tmp_path, str(modest), "--effort", "screen", "--json")
    found = told(done)
    assert done.returncode == 0, done.stdout + done.stderr
    assert found["shapes"][0]["now"][0] > 0.3
    assert found["shapes"][0]["stale"], "the claim is too low by far"
    boasting = write(tmp_path / "boasting", (50.0,), half=0.3)
    done = run(tmp_path, str(boasting.with_suffix("")), "--effort", "screen", "--json")
    found = told(done)
    assert done.returncode == 1, done.stdout + done.stderr
    assert found["shapes"][0]["status"] == "slower"
    assert found["shapes"][0]["looks"] == 2


@pytest.mark.slow
def test_a_bundle_that_became_wrong_is_a_regression(tmp_path: Path) -> None:
    done = run(tmp_path, str(write(tmp_path, (1.0,), source=WRONG)), "--effort", "screen", "--json")
    assert done.returncode == 1, done.stdout + done.stderr
    assert told(done)["verdict"] == "incorrect"


def test_the_code_of_a_bundle_runs_in_the_sandbox_alone(
    tmp_path: Path, referee: Referee, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it does when it is imported, nothing of it is seen outside."""
    monkeypatch.setattr("evaluator.client.Referee", lambda *_, **__: nullcontext(referee))
    mark = tmp_path / "ran"
    source = f"open({str(mark)!r}, 'w').write('x')\nclass ModelNew: pass\n"
    done = run_here(str(write(tmp_path, (1.0,), source=source)), "--effort", "screen", "--json")
    assert done.exit_code == 1, done.output
    assert told(done)["verdict"] == "runtime_error"
    assert not mark.exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [(("nowhere.zip",), "cannot read"), (("nowhere.zip", "--max-regression", "200%"), "no share")],
)
def test_what_cannot_be_measured_ends_with_two(words: tuple[str, ...], said: str) -> None:
    done = run_here(*words)
    assert done.exit_code == 2
    assert said in " ".join(done.stderr.split())
    assert isinstance(done.exception, SystemExit)


def test_a_gpu_s_bundle_on_a_machine_without_one(tmp_path: Path) -> None:
    from evaluator.devices import open_device
    from evaluator.errors import EvaluatorError

    try:
        open_device("cuda")
    except EvaluatorError:
        pass
    else:
        pytest.skip("there is a GPU here")
    folder = write(tmp_path).with_suffix("")
    file = folder / "evidence.json"
    file.write_text(file.read_text().replace('"device": "cpu",\n "dims"', '"device": "cuda",\n "dims"'))
    assert read_bundle(folder).device == "cuda"
    done = run(tmp_path, str(folder))
    assert done.returncode == 2
    assert "GPU" in done.stderr
