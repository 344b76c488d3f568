"""A job that went on elsewhere chooses among the verdicts of one machine."""

from __future__ import annotations

from agent.candidates import Candidate
from agent.portfolio import Entry
from agent.portfolio.entries import of_one_platform
from evaluator.verdict import from_json

HERE = {"device": "cuda", "device_name": "NVIDIA H200", "driver": "580", "torch": "2.11"}
THERE = {**HERE, "device_name": "NVIDIA H100"}


def entry(order: int, environment: dict[str, str]) -> Entry:
    return Entry(
        Candidate(f"# {order}\n", "llm", f"c{order}"),
        order,
        from_json({"verdict": "accepted", "environment": environment}),
    )


def test_most_verdicts_decide_and_the_last_one_between_equals() -> None:
    a, b, c = entry(0, THERE), entry(1, HERE), entry(2, HERE)
    assert of_one_platform([a, b, c]) == [b, c]
    assert of_one_platform([b, a]) == [a]
    assert of_one_platform([a, b]) == [b]
    assert of_one_platform([]) == []


def test_another_card_of_the_type_belongs_to_it() -> None:
    both = [entry(0, {**HERE, "gpu_uuid": "GPU-1"}), entry(1, {**HERE, "gpu_uuid": "GPU-2"})]
    assert of_one_platform(both) == both
