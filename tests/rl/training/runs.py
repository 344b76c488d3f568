"""Runs of training in processes of their own, and what they have left in their folders."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rl.config import AnyStage
from rl.exemplars import ExemplarDatabase
from rl.metrics import read_steps
from tests.rl.training import child

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.rl.training.planted"])
_PATIENCE_S = 240
#: A figure of metrics.jsonl and the trainer's own name for it.
LOGGED = {
    "loss": "train/loss",
    "learning_rate": "train/learning_rate",
    "gradient_norm": "train/grad_norm",
    "entropy": "train/entropy",
}


@dataclass(frozen=True)
class Ended:
    """How a run ended: by a signal, with an error, or well (`error` is "")."""

    signal: int
    error: str
    text: str
    asked: tuple[str, ...]


def train(stages: AnyStage | Sequence[AnyStage], **options: Any) -> Ended:
    """Train in a process of its own, see `tests.rl.training.planted.train`."""
    listed = tuple(stages) if isinstance(stages, Sequence) else (stages,)
    answers = _CONTEXT.SimpleQueue()
    code = _finished(_CONTEXT.Process(target=child.train, args=(listed, answers), kwargs=options))
    if code:
        return Ended(-code, "", "", ())
    error, text, asked = answers.get()
    return Ended(0, error, text, tuple(asked))


def answer(checkpoint: Path, prompt: str) -> tuple[str, str]:
    """The text with which a checkpoint answers as the agent's policy, and why the text ends."""
    answers = _CONTEXT.SimpleQueue()
    assert _finished(_CONTEXT.Process(target=child.answer, args=(str(checkpoint), prompt, answers))) == 0
    text, finish = answers.get()
    return text, finish


def _finished(process: Any) -> int:
    """Start a process and return its exit code."""
    process.start()
    process.join(_PATIENCE_S)
    if process.is_alive():
        process.kill()
        raise AssertionError("the run did not end")
    return int(process.exitcode)


def weights(folder: Path) -> dict[str, Any]:
    """Of a finished model."""
    from safetensors.torch import load_file

    return load_file(folder / "checkpoint" / "model.safetensors")


def same_weights(one: Path, other: Path) -> bool:
    """Whether two runs have made the same model, to the last bit."""
    first, second = weights(one), weights(other)
    return first.keys() == second.keys() and all(first[name].equal(second[name]) for name in first)


def figures(folder: Path) -> list[tuple[Any, ...]]:
    """Of each step what does not depend on the clock or on which process asked the judge."""
    names = (
        "step",
        "loss",
        "gradient_norm",
        "tokens",
        "round",
        "snapshot",
        "reward_mean",
        "speedup_mean",
        "completions",
    )
    return [tuple(line[name] for name in names) for line in read_steps(folder / "metrics.jsonl")]


def samples(folder: Path) -> list[dict[str, Any]]:
    """Completions and what they got."""
    return read_steps(folder / "samples.jsonl")


def first_call_of(step: int, undisturbed: Path) -> int:
    """Number of the judge's first call in a step: how many a step has depends on which programs are sampled twice."""
    judged = [line["judged"] for line in read_steps(undisturbed / "metrics.jsonl")]
    assert judged[step - 1] > 0
    return int(sum(judged[: step - 1])) + 1


def one_of_several(undisturbed: Path) -> tuple[int, int]:
    """Number of a step that judges several programs, and of its first call; which one does depends on the processor's arithmetic."""
    judged = [line["judged"] for line in read_steps(undisturbed / "metrics.jsonl")]
    step = next(number for number, count in enumerate(judged, 1) if count > 1)
    return step, first_call_of(step, undisturbed)


def asked(folder: Path) -> dict[int, Any]:
    """Prompts and rewards by step; of a step that was done twice, the last."""
    lines = folder.with_name(f"{folder.name}-prompts.jsonl").read_text("utf-8").splitlines()
    return {line["step"]: line for line in map(json.loads, lines)}


def database(folder: Path, task: str, machine: str) -> list[Any]:
    """All exemplars of a task, at every snapshot."""
    with ExemplarDatabase(folder / "exemplars.journal", write=False) as found:
        return [found.members(task, machine, number) for number in range(found.snapshot + 1)]


def scalars(run: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard shows of a run: by name, steps and values."""
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    read = events.EventAccumulator(str(run / "tensorboard"), size_guidance={events.SCALARS: 0}).Reload()
    return {name: [(one.step, one.value) for one in read.Scalars(name)] for name in read.Tags()["scalars"]}


def same_curves(run: Path) -> None:
    """Whether the trainer's events say of every step what metrics.jsonl says."""
    lines, found = read_steps(run / "metrics.jsonl"), scalars(run)
    known = 0
    for name, logged in LOGGED.items():
        told = [(line["step"], line[name]) for line in lines if line[name] is not None]
        assert found.get(logged, []) == [
            # rounded in the one, 32 bits in the other
            (step, pytest.approx(value, rel=1e-5, abs=1e-6))
            for step, value in told
        ], name
        known += len(told)
    assert known >= 3 * len(lines)
