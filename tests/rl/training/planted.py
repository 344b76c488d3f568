"""Training with verdicts by a rule, in a process that may be killed.

It is imported by a fork server that has loaded TRL, so that each run of a test is a process of its own (which may be killed) and yet
begins at once.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import json
import os
import resource
import signal
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evaluator.allocator import keep_freed_memory
from evaluator.sources import TaskSource
from evaluator.verdict import Verdict, from_json
from rl import fleet as fleet_module
from rl.config import AnyStage
from rl.fleet import Fleet
from rl.judges import Unjudged
from rl.stages import contrastive, selfsup, sft  # noqa: F401 - loaded once, in the fork server
from rl.train import chained, check, run
from tests.rl.training.world import speed_of
from tests.rl.verdicts import accepted, rejected

# Every step allocates and frees the same tensors; page faults took a third of a run's CPU time.
keep_freed_memory(1 << 30)
gc.freeze()


class Planted:
    """Accepts every program; what to do at the call with a number stands in `at`.

    Args:
        at: by number of the call, from 1: "kill" this process, "term" it, "gone" for an evaluator that is not there from then on,
            "silent" for a verdict that never comes, "unjudged" for one that says nothing from then on, "cheat" for a hack.
    """

    def __init__(self, at: Mapping[int, str]) -> None:
        self._at = at
        self.asked: list[str] = []
        self._gone = self._unjudged = False

    async def judge(self, task: TaskSource, source: str, *, whole: bool = False) -> Verdict:
        self.asked.append(source)
        what = self._at.get(len(self.asked), "")
        if what in ("kill", "term"):
            os.kill(os.getpid(), signal.SIGKILL if what == "kill" else signal.SIGTERM)
        self._gone = self._gone or what == "gone"
        if self._gone:
            raise Unjudged("no service answers at http://planted", again=True, gone=True)
        self._unjudged = self._unjudged or what == "unjudged"
        if self._unjudged:
            return from_json(rejected("not_judged"))
        if what == "silent":
            await asyncio.sleep(3600)
        if what == "cheat":
            return from_json(
                rejected("cheating", {"rule": "stale_output", "severity": "cheat", "evidence": "old"})
            )
        return from_json(accepted(speed_of(source)))

    def close(self) -> None:
        pass


def train(
    stages: Sequence[AnyStage],
    answers: Any,
    resume: bool = False,
    at: Mapping[int, str] | None = None,
    kill_at_step: int | None = None,
    disk_full: int | None = None,
    reads: Path | None = None,
) -> None:
    """Train in this process, and tell what came of it: ("", "") or the error's name and text, and what the judge was asked.

    Args:
        stages: a list of them.
        answers: a queue.
        resume: as `--resume auto`.
        at: see `Planted`.
        kill_at_step: die by SIGKILL after the weights of this step have moved and before anything else is written of it.
        disk_full: no file may grow beyond so many bytes, which fails writes half-way, as a full disk does.
        reads: file for how many tokens the model read for each that it sampled, a line each.
    """
    import torch

    torch.set_num_threads(1)
    fleet_module._PAUSE_S = 0.05
    os.environ["KEPT_PROMPTS"] = str(stages[-1].output.with_name(f"{stages[-1].output.name}-prompts.jsonl"))
    _keep_prompts()
    judge = Planted(at or {})
    if reads is not None:
        _keep_reads(reads)
    if kill_at_step is not None:
        _kill_at(kill_at_step)
    if disk_full is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (disk_full, resource.RLIM_INFINITY))
    try:
        ready = chained(stages)
        check(ready)
        run(ready, resume=resume, judges=lambda settings: judge)
        answers.put(("", "", judge.asked))
    except Exception as error:
        traceback.print_exc()
        answers.put((type(error).__name__, str(error), judge.asked))


def _keep_prompts() -> None:
    """Write down what GRPO asked in each step, into the folder of the run."""
    before = Fleet.rewards

    async def rewards(self: Fleet, prompts: Any, completions: Any, task: Any, **more: Any) -> Any:
        found = await before(self, prompts, completions, task, **more)
        if "trainer_state" in more:
            step = more["trainer_state"].global_step + 1
            with (Path(os.environ["KEPT_PROMPTS"])).open("a", encoding="utf-8") as file:
                file.write(json.dumps({"step": step, "prompts": prompts, "rewards": found}) + "\n")
        return found

    Fleet.rewards = rewards  # type: ignore[method-assign]


def _keep_reads(path: Path) -> None:
    from transformers import GenerationMixin

    before = GenerationMixin.prepare_inputs_for_generation

    @functools.wraps(before)  # `generate` looks at its signature
    def prepared(self: Any, *given: Any, **more: Any) -> Any:
        found = before(self, *given, **more)
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{found['input_ids'].shape[1]}\n")
        return found

    GenerationMixin.prepare_inputs_for_generation = prepared  # type: ignore[method-assign]


def _kill_at(step: int) -> None:
    from rl.stages.trainers import Keeper

    def on_step_end(self: Any, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == step:
            os.kill(os.getpid(), signal.SIGKILL)
        return before(self, args, state, control)

    before = Keeper.on_step_end
    Keeper.on_step_end = on_step_end  # type: ignore[method-assign]
