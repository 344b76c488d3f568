"""What the agent itself adds to a step: neither model nor referee. The bar is 30 ms.

A scripted endpoint on this machine answers at once, every candidate gets its verdict at once, and the job's record goes to
a folder, flushed at every step. A step is a request, its answer, the candidate in it and the next prompt. What the endpoint and its
HTTP client need is measured apart, and taken off where one request is made after the other. Three pieces:

    first     attempts with a repair each, one after the other
    search    rounds with critic, exemplars and the comparison with all that was tried, on files of the length of real kernels
    many      16 jobs with 8 proposals in flight each, all in this process: seconds over the steps of all of them together

    python -m benchmarks.agent_overhead [--steps 100] [--jobs 16] [--json overhead.json]
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from agent.candidates import Candidate
from agent.proposers.base import ProposalContext
from agent.proposers.llm import LLMProposer
from agent.providers.base import Message
from agent.providers.openai_compatible import OpenAICompatible
from agent.records import Records
from agent.spec import Budget, ModelChoice
from agent.stores.folder import FolderStore
from agent.strategy.settings import Strategy
from tests.agent.chat_server import Answer, chat_server
from tests.agent.strategy.search_job import by_source
from tests.agent.strategy.test_search import by_prompt
from tests.agent.test_llm_proposer import DESCRIPTION, TASK, reply, verdict

_BAR_MS = 30.0
_IN_FLIGHT = 8
_ROUNDS = 6
_LINES = 120


@dataclass(frozen=True)
class _Ran:
    """A job: how many requests it made, its seconds, and those of storing candidates and verdicts, which are the judge's."""

    steps: int
    elapsed_s: float
    judging_s: float


def main(
    steps: Annotated[int, typer.Option(help="Requests of the first piece.")] = 100,
    jobs: Annotated[int, typer.Option(help="Jobs at once in the last piece.")] = 16,
    as_json: Annotated[Path | None, typer.Option("--json", help="Where the figures are written.")] = None,
) -> None:
    """Run the three pieces and print."""
    made = iter(range(10**9))

    def fresh(_: object) -> Answer:
        return reply(f"x * {next(made)}")

    rejected = verdict("incorrect")
    figures: dict[str, Any] = {"bar_ms": _BAR_MS}
    with chat_server(chosen=fresh) as server, tempfile.TemporaryDirectory() as folder:
        choice = ModelChoice("m", base_url=server.base_url, samples=max(1, steps // 2))
        http_s = _http_s(choice)
        first = _job(Path(folder) / "first", choice, lambda _: rejected, in_flight=1)
        figures["first"] = _figures(first, http_s)
        with ThreadPoolExecutor(jobs) as pool:
            few = ModelChoice("m", base_url=server.base_url, samples=_IN_FLIGHT)
            began_s = time.perf_counter()
            all_ = list(
                pool.map(
                    lambda n: _job(Path(folder) / str(n), few, lambda _: rejected, in_flight=_IN_FLIGHT),
                    range(jobs),
                )
            )
            elapsed_s = time.perf_counter() - began_s
        count = sum(one.steps for one in all_)
        figures["many"] = {"jobs": jobs, "steps": count, "ms": round(elapsed_s / count * 1e3, 2)}
    with chat_server(chosen=_long) as server, tempfile.TemporaryDirectory() as folder:
        choice = ModelChoice("m", base_url=server.base_url)
        strategy = Strategy(rounds=_ROUNDS, beam=4, branches=2, patience=99, seed=1, tune=False)
        figures["search"] = _figures(_job(Path(folder), choice, by_source, strategy=strategy), http_s)
    print(json.dumps(figures, indent=1))
    if as_json is not None:
        where = {
            "platform": platform.platform(),
            "python": platform.python_version(),
            "cores": os.cpu_count(),
        }
        as_json.write_text(json.dumps({"environment": where, **figures}, indent=1))


def _http_s(choice: ModelChoice) -> float:
    provider = OpenAICompatible(choice)
    asking_s = []
    for _ in range(20):
        began_s = time.perf_counter()
        provider.complete([Message("user", "x" * 5000)])
        asking_s.append(time.perf_counter() - began_s)
    return statistics.median(asking_s)


def _job(
    folder: Path,
    choice: ModelChoice,
    judge: Callable[[Candidate], dict[str, Any]],
    in_flight: int = 1,
    strategy: Strategy | None = None,
) -> _Ran:
    store = FolderStore(folder)
    context = ProposalContext(TASK, DESCRIPTION, "cpu", None, store)  # type: ignore[arg-type]
    proposer = LLMProposer([choice], Budget(usd=1e9), in_flight=in_flight, strategy=strategy)
    judging_s, began_s = 0.0, time.perf_counter()
    for candidate in proposer.propose(context):
        judged_s = time.perf_counter()
        store.add_candidate(candidate)
        store.add_verdict(candidate.sha256, "screen", judge(candidate))
        judging_s += time.perf_counter() - judged_s
    elapsed_s = time.perf_counter() - began_s
    return _Ran(len(Records(store).requests()), elapsed_s, judging_s)


def _long(request: dict[str, Any]) -> Answer:
    """The answer to a prompt with a file of the length of a real kernel."""
    answer = by_prompt(request)
    found = str(answer.text)
    if "class ModelNew" not in found:
        return answer
    number = abs(hash(found)) % 97
    lines = "".join(f"\n\ndef part_{n}(x, y):\n    return x * {n * number} + y" for n in range(_LINES // 4))
    return Answer(found.replace("import torch\n", f"import torch\n{lines}\n", 1))


def _figures(ran: _Ran, http_s: float) -> dict[str, Any]:
    step_s = (ran.elapsed_s - ran.judging_s) / ran.steps
    return {
        "steps": ran.steps,
        "http_ms": round(http_s * 1e3, 2),
        "overhead_ms": round((step_s - http_s) * 1e3, 2),
    }


if __name__ == "__main__":
    typer.run(main)
