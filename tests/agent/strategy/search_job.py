"""A search without a referee, as a program that can be killed: `python -m tests.agent.strategy.search_job FOLDER BASE_URL`."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Any

from agent.background import Background
from agent.candidates import Candidate
from agent.proposers.llm import LLMProposer
from agent.proposing import ProposalContext
from agent.spec import Budget, ModelChoice, Strategy
from agent.stores.folder import FolderStore
from evaluator.description import Description
from evaluator.sources import TaskSource
from evaluator.verdict import from_json
from tests.agent.strategy.judging import accepted, rejected

TASK = TaskSource(
    "twice",
    "import torch\n\n\nclass Model(torch.nn.Module):\n    def forward(self, x):\n        return 2 * x\n",
)
DESCRIPTION = Description(shapes={"visible": [{"rows": 1}, {"rows": 2}]})
STRATEGY = Strategy(rounds=3, beam=2, branches=2, patience=9, seed=1, tune=False, plan=True)


def models(base_url: str) -> list[ModelChoice]:
    """Two models at one server."""
    return [
        ModelChoice(name, base_url=base_url, usd_per_million_output_tokens=usd)
        for name, usd in (("dear", 9.0), ("cheap", 1.0))
    ]


def file(body: str) -> str:
    """A candidate's file whose forward returns this."""
    return f"import torch\n\n\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return {body}\n"


def number_of(text: str) -> int:
    """A number that the same text always has."""
    return int(hashlib.sha256(text.encode()).hexdigest()[:6], 16)


def by_source(candidate: Candidate) -> dict[str, Any]:
    """The same verdict for the same file: mostly accepted, at one of many speeds."""
    number = number_of(candidate.source)
    return rejected() if number % 7 == 0 else accepted(0.5 + number % 31 / 10, 0.5 + number % 31 / 10)


def main(folder: Path, base_url: str) -> None:
    """Work on the search in `folder` until it is done."""
    store = FolderStore(folder)
    background = Background(store, TASK.source, DESCRIPTION, "cpu")
    context = ProposalContext(TASK, DESCRIPTION, "cpu", None, store, background=background)  # type: ignore[arg-type]
    # One attempt at a time: which model the search asks depends on what the first attempts brought, in their order.
    for candidate in LLMProposer(models(base_url), Budget(), strategy=STRATEGY, in_flight=1).propose(context):
        store.add_candidate(candidate)
        store.add_verdict(candidate.sha256, "screen", from_json(by_source(candidate)))
    store.finish_step("done", {"done": True})


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
