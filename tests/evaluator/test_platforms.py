"""Which measurements belong together, and whether a machine is the one that it says it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evaluator.devices import CpuDevice
from evaluator.environment import measured_on
from evaluator.fingerprint import changes, comparable, fingerprint, platform, same_type, type_of
from evaluator.profiling import ceilings
from evaluator.profiling.claims import doubt
from evaluator.verdict import without_measurement
from evaluator.verdict_store import Question, VerdictStore

CARD = {
    "device": "cuda",
    "device_name": "NVIDIA H200",
    "gpu_uuid": "GPU-1",
    "driver": "580",
    "power_limit_w": 700.0,
    "torch": "2.11.0",
    "triton": "3.6.0",
    "threads": 16,
    "harness": "6",
}
CHANGED = {
    "device_name": "NVIDIA H100",
    "driver": "590",
    "power_limit_w": 500.0,
    "torch": "2.12.0",
    "triton": "3.7.0",
    "harness": "7",
}
H200 = json.loads((Path(ceilings.__file__).parent / "measured_types.json").read_text())["NVIDIA H200"][
    "rates"
]


@pytest.mark.parametrize("name", CHANGED)
def test_whatever_a_figure_depends_on_makes_another_platform(name: str) -> None:
    other = {**CARD, name: CHANGED[name]}
    assert fingerprint(other) != fingerprint(CARD)
    assert platform(other) != platform(CARD)
    assert len(changes(CARD, other)) == 1
    assert str(CHANGED[name]) in str(changes(CARD, other)[0])


def test_another_card_of_the_type_is_another_one_but_ranks_with_it() -> None:
    other = {**CARD, "gpu_uuid": "GPU-2", "threads": 128}
    assert fingerprint(other) != fingerprint(CARD)
    assert platform(other) == platform(CARD)
    assert same_type(CARD, other)
    cpu = {**CARD, "device": "cpu", "device_name": "a CPU"}
    assert platform({**cpu, "threads": 2}) != platform({**cpu, "threads": 4})
    assert type_of({**cpu, "threads": 2}) == "a CPU, 2 threads"


def test_what_is_not_known_is_not_taken_for_the_same() -> None:
    assert not same_type({}, {})
    assert not comparable({}, {})
    assert not comparable(CARD, {**CARD, "harness": "5"})
    assert comparable(CARD, {**CARD, "torch": "2.12.0"})


def test_a_measurement_carries_its_fingerprint() -> None:
    found = measured_on(CpuDevice())
    assert found["fingerprint"] == fingerprint(found)


def test_measuring_the_ceilings_again_makes_no_other_machine(tmp_path: Path) -> None:
    """A verdict says which ceilings it lies beside, and is found again whatever they are by then."""
    question = Question("task", "candidate", "screen", ("visible",))
    here = measured_on(CpuDevice())
    verdict = without_measurement(
        "accepted",
        "because",
        task={"name": "t", "sha256": "task"},
        candidate={"sha256": "candidate", "origin": "external", "label": "c"},
        effort="screen",
        splits=("visible",),
        environment={**here, "sandbox_tier": "landlock", "ceilings": "0123456789abcdef"},
    )
    store = VerdictStore(tmp_path / "verdicts")
    store.keep(question, verdict)
    found = store.find(question, here, "landlock")
    assert found is not None
    assert found.environment["ceilings"] == "0123456789abcdef"
    assert store.find(question, {**here, "driver": "another"}, "landlock") is None


def test_the_digest_is_of_the_rates_that_are_kept(tmp_path: Path) -> None:
    assert ceilings.digest(tmp_path, "cpu") is None
    path = ceilings.kept_path(tmp_path, CpuDevice())
    path.parent.mkdir()
    found = set()
    for rate in (1e10, 2e10, 1e10):
        path.write_text(json.dumps({"schema": ceilings.SCHEMA, "rates": {"dram_bytes_per_s": rate}}))
        found.add(ceilings.digest(tmp_path, "cpu"))
    assert len(found) == 2


def scaled(factor: float, *names: str) -> dict[str, Any]:
    return {name: rate * (factor if name in names else 1.0) for name, rate in H200.items()}


@pytest.mark.parametrize(
    ("rates", "words"),
    [
        (scaled(1.0), None),
        (scaled(0.9, *H200), None),
        (scaled(0.65, "bfloat16_flops_per_s"), None),  # a lower power limit does that
        (scaled(0.7, "dram_bytes_per_s"), "copying memory"),  # an H100 by that name
        (scaled(1 / 7, *H200), "copying memory"),  # a slice of one
        (scaled(1.5, "dram_read_bytes_per_s"), "reading memory"),
        (scaled(0.5, "bfloat16_flops_per_s"), "bfloat16 products"),
        ({}, None),
        ({"dram_bytes_per_s": None, "dram_read_bytes_per_s": "fast"}, None),
    ],
)
def test_a_card_that_is_measured_otherwise_is_doubted(rates: dict[str, Any], words: str | None) -> None:
    said = doubt("cuda", "NVIDIA H200", rates, [])
    if words is None:
        assert said is None
    else:
        assert said is not None
        assert words in said
        assert "this project has measured" in said
        assert "--fresh" in said


def test_of_other_types_the_other_workers_are_the_measure() -> None:
    rates = {"dram_bytes_per_s": 1.0e12}
    assert doubt("cuda", "NVIDIA X", rates, []) is None, "nobody knows that type yet"
    same, odd = {"dram_bytes_per_s": 1.1e12}, {"dram_bytes_per_s": 9.0e12}
    assert doubt("cuda", "NVIDIA X", rates, [same, odd, same]) is None
    said = doubt("cuda", "NVIDIA X", rates, [odd, {"dram_bytes_per_s": float("nan")}, {}])
    assert said is not None
    assert "1 other worker" in said
    assert doubt("cpu", "a CPU, 2 threads", rates, [{"dram_bytes_per_s": 3.0e12}]) is None
    assert doubt("cpu", "a CPU, 2 threads", rates, [odd])
