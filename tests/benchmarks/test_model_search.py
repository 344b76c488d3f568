"""What each arm of the study chooses, and what the tables make of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import typer

from agent.candidates import Candidate
from agent.providers.list_prices import list_price
from agent.stores.folder import FolderStore
from benchmarks.model_search import ARMS, PRICED, chosen_by_arm, cost_usd, drawn, gain, summarize
from evaluator.precision import declared
from evaluator.verdict import from_json
from tests.agent.strategy.judging import accepted, rejected


def test_arms_choose_by_validation_shapes_alone(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    for label, origin, validation, held_out in (
        ("library", "human", 1.5, 9.0),
        ("inductor", "compiler", 1.2, 9.0),
        ("m #1", "llm", 1.1, 9.0),
        ("m #2", "llm", 1.3, 1.0),
        ("m #10", "llm", 1.25, 9.0),
        ("m #1 repaired", "llm", 1.8, 9.0),
        ("m round 1, tuned", "llm", 2.0, 1.0),
        ("m round 2", "llm", None, 9.0),
        ("optimized.py", "llm", 7.0, 7.0),
    ):
        one = Candidate(f"# {label}", origin, label)
        store.add_candidate(one)
        found = accepted(validation) if validation else rejected()
        store.add_verdict(one.sha256, "validation", from_json(found))
        store.add_verdict(one.sha256, "held_out", from_json(accepted(held_out)))
    chosen = chosen_by_arm(store)
    assert {name: one.label for name, one in chosen.items() if one} == {
        "library": "library",
        "model, one attempt": "m #1",
        "model, best attempt": "m #2",
        "model": "m round 1, tuned",
        "both": "m round 1, tuned",
    }


def test_an_arm_without_a_candidate_keeps_the_reference(tmp_path: Path) -> None:
    assert chosen_by_arm(FolderStore(tmp_path)) == dict.fromkeys(ARMS)

    def one(speedup: float, low: float, verdict: str = "accepted") -> dict[str, Any]:
        return {"verdict": verdict, "geomean_speedup": speedup, "geomean_ci95": [low, 2 * speedup]}

    rows = [
        {"arms": {**dict.fromkeys(ARMS), "library": one(2.0, 1.5), "both": one(4.0, 3.0)}},
        {"arms": {**dict.fromkeys(ARMS), "library": one(8.0, 7.0, "incorrect"), "both": one(1.0, 0.9)}},
    ]
    totals = {entry["arm"]: entry for entry in summarize(rows)}
    assert totals["library"]["geomean_speedup"] == pytest.approx(2.0**0.5)
    assert (totals["library"]["rejected"], totals["library"]["faster"]) == (1, 1)
    assert totals["model"]["geomean_speedup"] == 1.0
    assert (totals["both"]["faster"], totals["both"]["worst"]) == (1, 1.0)
    assert gain(rows, "library")["ratio"] == pytest.approx(2.0**0.5)


def test_the_tier_is_of_the_modules_that_are_drawn(tmp_path: Path) -> None:
    for level in ("level1", "level2", "level3"):
        (tmp_path / level).mkdir()
        for number in range(10):
            (tmp_path / level / f"{number}_x.py").write_text("class Model: pass\n")
    every = drawn(tmp_path, [], "strict")
    modules = {name: source for name, source in every.items() if name.startswith("level")}
    assert (len(modules), len(every)) == (24, 32)
    assert {declared(source) for source in modules.values()} == {"strict"}
    assert "strict" not in {declared(source) for name, source in every.items() if name not in modules}
    assert list(drawn(None, ["row_sum"])) == ["row_sum"]
    with pytest.raises(typer.BadParameter, match="unknown: nothing_like_it"):
        drawn(None, ["nothing_like_it"])


def test_tasks_of_the_catalogue_are_drawn_in_bfloat16_alone() -> None:
    tasks = drawn(None, ())
    assert len(tasks) == 8
    for name, source in tasks.items():
        scope: dict[str, Any] = {"__name__": name}
        exec(compile(source, name, "exec"), scope)
        assert scope["DIMS"]["dtype"].values == ("bfloat16",), name
        assert any(one.dtype == torch.bfloat16 for one in scope["get_inputs"]()), name


def test_tokens_cost_what_the_list_says() -> None:
    for model in PRICED:
        price = list_price(model)
        assert price is not None
        given, made = price.usd_per_million_tokens
        asked = {"prompt_tokens": 3_000_000, "completion_tokens": 2_000_000}
        assert cost_usd(asked, price) == pytest.approx(3 * given + 2 * made)
