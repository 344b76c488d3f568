"""Fine-tunes the proposing model from verdicts: `python -m rl.train CONFIG`. What each stage does stands in `rl.stages`.

    python -m rl.train rl/configs/cpu.yaml                        three stages, a tiny model, no GPU
    python -m rl.train CONFIG --resume auto                       go on where a killed run stopped; safe to give always
    python -m rl.train CONFIG --set contrastive.steps=20          a setting instead of the file's
    python -m rl.train CONFIG --check                             look at config, tasks and data, and train nothing
    accelerate launch --num_processes 4 -m rl.train CONFIG        several GPUs

A stage writes into the folder that its config calls `output` (docs/training-runs.md). Its finished model, in `checkpoint/` there, is
what the next stage begins with and what the agent loads as its policy.

Exit status: 0 done; 2 the config or the data is wrong, nothing was trained; 75 stopped and can go on (evaluators that are gone, a full
disk, a signal): the message says what to do, and --resume auto goes on from the last checkpoint.
"""

from __future__ import annotations

import sys
from pathlib import Path

from evaluator.counting import counted

if not __package__:  # run as a file: its folder must not hide other packages behind names such as `fleet`
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import argparse
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rl.checkpoints import BASE, FINAL, claim, owned, whole
from rl.config import AnyStage, ContrastiveStage, FleetPart, SelfsupStage, SftStage, load
from rl.decontamination import ContaminatedError
from rl.errors import ConfigError, DataError, RLError
from rl.gguf_models import check_gguf, is_gguf, unpack
from rl.judges import Judge, Unjudged, check_address, judge_of
from rl.metrics import read_steps

_WRONG, _STOPPED = 2, 75
_log = logging.getLogger("rl.train")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, and return the exit status."""
    asked = _parser().parse_args(arguments)
    given = asked.config or asked.config_option
    if given is None or (asked.config and asked.config_option):
        _parser().error("name one CONFIG, for example rl/configs/cpu.yaml")
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    for noisy in ("httpx", "datasets", "accelerate", "filelock"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    try:
        stages = chained(load(given, asked.settings))
        check(stages)
        if asked.check:
            _log.info("nothing is wrong with %s: %s", given, ", ".join(stage.stage for stage in stages))
        else:
            run(stages, resume=asked.resume == "auto")
    except (ConfigError, DataError, ContaminatedError) as error:
        _log.error("%s", error)
        return _WRONG
    except RLError as error:
        _log.error("%s", error)
        return _STOPPED
    return 0


def chained(stages: Sequence[AnyStage]) -> tuple[AnyStage, ...]:
    """Fill in what a stage takes from earlier stages of the list: the model, verdicts and initial exemplars."""
    found: list[AnyStage] = []
    verdicts: dict[str, Path] = {}
    successes: Path | None = None
    for stage in stages:
        changes: dict[str, object] = {}
        if stage.model.path is None and stage.model.fresh is None:
            if not found:
                raise ConfigError(
                    f"the stage {stage.name!r} has no model to begin with: give `model.path` or `model.fresh`"
                )
            path = str(found[-1].output / FINAL)
            changes["model"] = stage.model.model_copy(update={"path": path})
        if isinstance(stage, SelfsupStage | ContrastiveStage):
            if stage.model.fresh is not None:
                raise ConfigError(f"the stage {stage.name!r} cannot begin with a fresh model; only `sft` can")
            # A verdict holds for one device and set of shapes: a stage with others has its own verdicts.
            about = stage.fleet.model_dump_json(include={"device", "shapes"})
            if stage.fleet.verdicts is None and about in verdicts:
                changes["fleet"] = stage.fleet.model_copy(update={"verdicts": verdicts[about]})
            verdicts[about] = stage.fleet.verdicts or verdicts.get(about) or stage.output / "verdicts.journal"
        if (
            isinstance(stage, ContrastiveStage)
            and stage.exemplars.begin_with is None
            and successes is not None
        ):
            changes["exemplars"] = stage.exemplars.model_copy(update={"begin_with": successes})
        if isinstance(stage, SelfsupStage):
            successes = stage.output / "successes.jsonl"
        found.append(stage.model_copy(update=changes))
    outputs = [stage.output.resolve() for stage in found]
    if len(set(outputs)) < len(outputs):
        raise ConfigError("two stages have the same `output`; each needs a folder of its own")
    return tuple(found)


def check(stages: Sequence[AnyStage]) -> None:
    """Check tasks, data and their overlap before training starts.

    Raises:
        ConfigError: a task, a file or a key is missing.
        DataError: a file of rows is missing or damaged.
        ContaminatedError: training data or tasks overlap with evaluation tasks.
    """
    from rl import tasks
    from rl.decontamination import refuse_overlaps
    from rl.llm_judge import require_key
    from rl.rows import modules, read_rows

    held_out = all_held_out(stages)
    evaluated = tasks.sources(tasks.named(held_out))
    for number, stage in enumerate(stages):
        if whole(stage.output / FINAL) is None:
            _require_files(stage, [one.output for one in stages[:number]])
        if isinstance(stage, ContrastiveStage) and stage.judge is not None:
            require_key(stage.judge)
        if isinstance(stage, SelfsupStage | ContrastiveStage):
            check_address(stage.fleet)
        if isinstance(stage, SftStage):
            if whole(stage.output / FINAL) is None:
                refuse_overlaps(modules(read_rows(stage.data)), evaluated)
        else:
            tasks.of_stage(stage, held_out)


def _require_files(stage: AnyStage, made: Sequence[Path]) -> None:
    """Check that a stage's initial files exist or will be made in one of the given folders."""
    named: list[tuple[str, Path | None]] = []
    path = stage.model.path
    if path is not None and is_gguf(path):
        check_gguf(Path(path))
    elif path is not None and (Path(path).is_absolute() or path.startswith(".") or path.count("/") > 1):
        named.append(("model.path", Path(path)))  # any other path may be a hub name
    if isinstance(stage, SelfsupStage | ContrastiveStage):
        named.append(("hacks.begin_with", stage.hacks.begin_with))
    if isinstance(stage, ContrastiveStage):
        named.append(("exemplars.begin_with", stage.exemplars.begin_with))
    for setting, file in named:
        if file is None or file.exists():
            continue
        if not any(file.resolve().is_relative_to(folder.resolve()) for folder in made):
            raise ConfigError(f"the stage {stage.name!r} begins with `{setting}` {file}, which is not there")


def all_held_out(stages: Sequence[AnyStage]) -> tuple[str, ...]:
    """The evaluation tasks of all stages; no stage may train on any of them."""
    return tuple(dict.fromkeys(name for stage in stages for name in stage.held_out))


def run(
    stages: Sequence[AnyStage], *, resume: bool, judges: Callable[[FleetPart], Judge] | None = None
) -> None:
    """Train the stages in order.

    Args:
        stages: see `chained`.
        resume: whether to resume in folders that hold a run and skip finished stages; else such folders are refused.
        judges: creates the judge; by default for a service or for local referees.

    Raises:
        RLError: see `rl.errors`; the message says whether and how to resume.
    """
    # Imported only after the config was checked, since these take seconds to load.
    from rl.ranks import Ranks
    from rl.stages import contrastive, selfsup, sft
    from rl.stages.trainers import stoppable

    ranks = Ranks()
    held_out = all_held_out(stages)
    with stoppable(), _shared(judges or _judge) as judge:
        for number, stage in enumerate(stages, 1):
            with _owned(stage, first=ranks.first, resume=resume):
                ranks.wait()
                done = whole(stage.output / FINAL)
                if done is not None:
                    _say(ranks.first, "%d/%d %s: finished before", number, len(stages), stage.stage)
                    told = stage.output / "metrics.jsonl"
                    figures = read_steps(told) if told.exists() else []
                    if figures and not isinstance(stage, SelfsupStage) and figures[-1]["step"] < stage.steps:
                        _say(
                            ranks.first,
                            "it ended after %s, and %d are set: to train on, name %s as `model` of another `output`",
                            counted(figures[-1]["step"], "step"),
                            stage.steps,
                            done.path,
                        )
                    continue
                _say(
                    ranks.first,
                    "%d/%d %s: %s into %s",
                    number,
                    len(stages),
                    stage.stage,
                    counted(stage.steps, "step"),
                    stage.output,
                )
                if is_gguf(stage.model.path):
                    if ranks.first:
                        unpack(stage)
                    ranks.wait()
                    unpacked = stage.model.model_copy(update={"path": str(stage.output / BASE)})
                    stage = stage.model_copy(update={"model": unpacked})
                if isinstance(stage, SftStage):
                    made = sft.run(stage, ranks, held_out)
                elif isinstance(stage, SelfsupStage):
                    made = selfsup.run(stage, ranks, judge, held_out)
                else:
                    made = contrastive.run(stage, ranks, judge, held_out)
                ranks.wait()
                _say(ranks.first, "%d/%d %s: the model is in %s", number, len(stages), stage.stage, made)


@contextmanager
def _owned(stage: AnyStage, *, first: bool, resume: bool) -> Iterator[None]:
    if not first:
        yield
        return
    with owned(stage.output):
        claim(stage, resume=resume)
        yield


class _Lent:
    """A judge that several stages use in turn; `_shared` closes it when all are done."""

    def __init__(self, judge: Judge) -> None:
        self.judge = judge.judge

    def close(self) -> None:
        """Do nothing: the next stage uses the judge."""


@contextmanager
def _shared(judges: Callable[[FleetPart], Judge]) -> Iterator[Callable[[FleetPart], Judge]]:
    """Create one judge for all stages with the same settings, since a referee takes seconds to start."""
    made: dict[str, Judge] = {}

    def judge(settings: FleetPart) -> Judge:
        key = settings.model_dump_json(exclude={"verdicts"})
        if key not in made:
            made[key] = judges(settings)
        return _Lent(made[key])

    try:
        yield judge
    finally:
        for one in made.values():
            one.close()


def _judge(settings: FleetPart) -> Judge:
    from evaluator.errors import EvaluatorError

    try:
        return judge_of(settings)
    except EvaluatorError as error:
        raise Unjudged(f"nothing here can judge: {error}", again=False, gone=True) from None


def _say(first: bool, text: str, *values: object) -> None:
    if first:
        _log.info(text, *values)


def _parser() -> argparse.ArgumentParser:
    about, _, more = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        "python -m rl.train",
        description=about,
        epilog=more,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "config", nargs="?", type=Path, metavar="CONFIG", help="a YAML file of rl/configs, or your own"
    )
    parser.add_argument("--config", dest="config_option", type=Path, metavar="CONFIG", help="the same")
    parser.add_argument(
        "--resume",
        choices=("auto", "never"),
        default="never",
        help="auto: go on from the newest whole checkpoint, or begin where there is none; never (default): refuse a folder with a run in it",
    )
    parser.add_argument(
        "--set",
        dest="settings",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting, e.g. optimizer.learning_rate=1e-5, or contrastive.steps=20 for one stage of several; may be repeated",
    )
    parser.add_argument(
        "--check", action="store_true", help="look at config, tasks and data, and train nothing"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
