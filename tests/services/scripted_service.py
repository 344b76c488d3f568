"""The service with a scripted referee: everything is real except that verdicts were recorded once and take a set time.

For tests of the queue, the store and the logs, where judging in earnest would only add minutes. The swap is one
name (`services.worker.referee_queue.Referee`), so leases, bench, agent, database and broker are those of production.

    python -m tests.services.scripted_service record          # records with the real referee, about five minutes
    python -m tests.services.scripted_service worker          # any command of `kernelwright`, with the scripted referee
"""

from __future__ import annotations

import base64
import copy
import json
import os
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from evaluator.description import Description
from evaluator.errors import RefereeLost
from evaluator.roles.tool_run import ToolResult
from evaluator.sources import CandidateSource, TaskSource
from evaluator.verdict import Verdict, as_json, from_json
from tests.services.model_server import model_server
from tests.services.service import FEW_SHAPES, OFTEN_TASK, ONCE, WRONG, candidate

RECORD = Path(__file__).with_name("scripted_verdicts.json")
_SAME = candidate(
    "return torch.relu(torch.sort(torch.sort(x, dim=1).values.flip(1), dim=1).values) * self.weight + 1.0"
)
#: What models answer, by the kind of verdict that it gets.
SOURCES = {"wrong": WRONG, "good": ONCE, "same": _SAME}
_MARK = "# kind: "


def proposal(kind: str, number: int) -> str:
    """A candidate that gets the verdicts recorded for `kind`; each number is a source of its own."""
    return f"{_MARK}{kind}, {number}\n{SOURCES[kind]}"


#: What each model of a job proposes first, and when it has seen the verdict.
MODELS = {
    "model-a": [proposal("wrong", 0), proposal("good", 1)],
    "model-b": [proposal("same", 2), proposal("wrong", 3)],
}


def job_request() -> dict[str, Any]:
    """The body of POST /optimize for a job whose candidates `MODELS` propose."""
    return {
        "source": OFTEN_TASK,
        "name": "scripted",
        "origins": ["llm"],
        "models": list(MODELS),
        "strategy": {"rounds": 0},
        "shapes": FEW_SHAPES,
    }


def kind_of(source: str) -> str:
    """Which recorded verdicts a source gets; what is assembled from candidates is as good as they."""
    marked = (
        kind for kind, text in SOURCES.items() if source == text or source.startswith(f"{_MARK}{kind},")
    )
    return next(marked, "delivered")


class ScriptedReferee:
    """Answers like `evaluator.client.Referee`, from the record."""

    def __init__(self, device: str = "cpu", **_: Any) -> None:
        self._killed = threading.Event()
        self._seconds = float(os.environ.get("SCRIPTED_SECONDS", "0.3"))

    def __enter__(self) -> ScriptedReferee:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def self_check(self) -> dict[str, Any]:
        """What the real one found."""
        return copy.deepcopy(_record()["self_check"])

    def describe(self, task: TaskSource, **_: Any) -> Description:
        """The recorded description."""
        self._take()
        return Description.from_json(copy.deepcopy(_record()["describe"]))

    def evaluate(
        self, task: TaskSource, candidate: CandidateSource, *, splits: Sequence[str] = ("visible",), **_: Any
    ) -> Verdict:
        """The recorded verdict, with this candidate's name in it."""
        self._take()
        verdict = copy.deepcopy(_record()["verdicts"][kind_of(candidate.source)][splits[0]])
        verdict["candidate"] = {
            "sha256": candidate.sha256,
            "origin": candidate.origin,
            "label": candidate.label,
        }
        return from_json(verdict)

    def run_tool(self, program: str, files: Mapping[str, str], **_: Any) -> ToolResult:
        """The recorded result of the one tool that such a job runs: the probe of the task's inputs."""
        self._take()
        found = copy.deepcopy(_record()["tool"])
        outputs = {name: base64.b64decode(data) for name, data in found.pop("outputs").items()}
        return ToolResult(**found, outputs=outputs)

    def kill(self) -> None:
        """The running call raises RefereeLost."""
        self._killed.set()

    def restart(self) -> None:
        """Judge again."""
        self._killed.clear()

    def close(self) -> None:
        """Nothing is held."""

    def _take(self) -> None:
        """Take the time of judging."""
        if self._killed.wait(self._seconds):
            raise RefereeLost("the scripted referee was killed")


@lru_cache(maxsize=1)
def _record() -> dict[str, Any]:
    return dict(json.loads(RECORD.read_text()))


class _Recorder:
    """Passes calls on to a real referee and keeps the answers."""

    def __init__(self, referee: Any) -> None:
        self._referee = referee
        self.kept: dict[str, Any] = {"verdicts": {}}

    def describe(self, task: TaskSource, **options: Any) -> Description:
        found: Description = self._referee.describe(task, **options)
        self.kept["describe"] = found.as_json()
        return found

    def evaluate(
        self, task: TaskSource, candidate: CandidateSource, *, splits: Sequence[str], **options: Any
    ) -> Verdict:
        found: Verdict = self._referee.evaluate(task, candidate, splits=splits, **options)
        self.kept["verdicts"].setdefault(kind_of(candidate.source), {})[splits[0]] = as_json(found)
        return found

    def run_tool(self, program: str, files: Mapping[str, str], **options: Any) -> ToolResult:
        found = self._referee.run_tool(program, files, **options)
        outputs = {name: base64.b64encode(data).decode() for name, data in found.outputs.items()}
        self.kept["tool"] = {**vars(found), "outputs": outputs}
        return cast(ToolResult, found)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._referee, name)


def record() -> None:
    """Run one job of each kind of candidate with the real referee and keep what it said.

    Raises:
        SystemExit: the machine was too busy to time anything; try again.
    """
    from agent.job import run_job
    from agent.spec import Budget, JobSpec, ModelChoice, Strategy
    from agent.stores.folder import FolderStore
    from evaluator.client import Referee

    with model_server(MODELS) as url, tempfile.TemporaryDirectory() as folder, Referee("cpu") as referee:
        models = tuple(ModelChoice(name, base_url=url) for name in MODELS)
        spec = JobSpec(
            "job",
            "recorded",
            TaskSource("often", OFTEN_TASK),
            origins=("llm",),
            models=models,
            budget=Budget(),
            shapes=FEW_SHAPES,
            strategy=Strategy(rounds=0),
        )
        recorder = _Recorder(referee)
        outcome = run_job(
            spec, FolderStore(Path(folder) / "store"), cast(Any, recorder), Path(folder) / "out"
        )
        if outcome.verdict_word != "accepted":
            raise SystemExit(f"{outcome.state}: {outcome.reason}")
        kept = {"self_check": referee.self_check(), **recorder.kept}
    RECORD.write_text(json.dumps(kept, indent=1) + "\n")


def main() -> None:
    """`record`, or a command of `kernelwright`."""
    if sys.argv[1:] == ["record"]:
        record()
        return
    from services.worker import referee_queue

    referee_queue.Referee = ScriptedReferee  # type: ignore[assignment,misc]
    from services.cli import app

    app()


if __name__ == "__main__":
    main()
