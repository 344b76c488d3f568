"""What the agent itself adds to a step: neither model nor referee. The bar is 30 ms.

A scripted endpoint on this machine answers at once, every candidate gets its verdict at once, and the job's record goes to
a folder, flushed at every step. A step is a request, its answer, the candidate in it and the next prompt. The time that
the endpoint and its HTTP client need is measured apart, and taken off.

    python benchmarks/agent_overhead.py [--steps 100]
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

from agent.proposers.base import ProposalContext
from agent.proposers.llm import LLMProposer
from agent.providers.base import Message
from agent.providers.openai_compatible import OpenAICompatible
from agent.spec import Budget, ModelChoice
from agent.stores.folder import FolderStore
from tests.agent.chat_server import Answer, chat_server
from tests.agent.test_llm_proposer import DESCRIPTION, TASK, reply, verdict


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    steps = parser.parse_args().steps
    made = iter(range(10**9))

    def chosen(_: object) -> Answer:
        return reply(f"x * {next(made)}")

    with chat_server(chosen=chosen) as server, tempfile.TemporaryDirectory() as folder:
        choice = ModelChoice("m", base_url=server.base_url, samples=steps // 2)
        provider = OpenAICompatible(choice)
        asking_s = []
        for _ in range(20):
            began_s = time.perf_counter()
            provider.complete([Message("user", "x" * 5000)])
            asking_s.append(time.perf_counter() - began_s)
        http_s = statistics.median(asking_s)
        store = FolderStore(Path(folder))
        context = ProposalContext(TASK, DESCRIPTION, "cpu", None, store)  # type: ignore[arg-type]
        began_s = time.perf_counter()
        judging_s = 0.0
        count = 0
        for candidate in LLMProposer([choice], Budget(usd=1e9), in_flight=1).propose(context):
            judged_s = time.perf_counter()
            store.add_candidate(candidate)
            store.add_verdict(candidate.sha256, "screen", verdict("incorrect"))
            judging_s += time.perf_counter() - judged_s
            count += 1
        step_s = (time.perf_counter() - began_s - judging_s) / count
    overhead_ms = (step_s - http_s) * 1e3
    print(
        json.dumps(
            {
                "steps": count,
                "http_ms": round(http_s * 1e3, 2),
                "overhead_ms": round(overhead_ms, 2),
                "bar_ms": 30,
            }
        )
    )


if __name__ == "__main__":
    main()
