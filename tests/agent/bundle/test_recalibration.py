"""Recalibration: a file that learnt its prices on another machine times a few shapes here, and chooses by that."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from agent.bundle.measured import Measured
from agent.dispatch.tree import Leaf
from agent.performance.analytic import Prices
from tests.agent.bundle.building import imported, inputs, optimized_text, right, warned
from tests.agent.bundle.modal import FAST, SLOW_TASK, planted

pytestmark = pytest.mark.alone

#: There, "once_fast" was several times faster than the reference, and "fast" slower than it. Here it is the other way round.
ONCE_FAST = planted("once_fast", "for _ in range(60): x * 1.0")
SHAPES = tuple(
    {"rows": rows, "cols": cols, "dtype": "float32"} for rows in (16, 64, 256, 1024) for cols in (64, 256)
)


def flat(us: float) -> tuple[Prices, Prices]:
    """So many microseconds a call and a little for each byte."""
    prices = Prices(1, (us, 0.0, 0.0, us * 1e-6, 0.0))
    return prices, prices


THERE = Measured(
    worst_cases=(3.0, 0.4),
    sizes=("rows", "cols"),
    units=96,
    prices=(flat(30.0), flat(8.0), flat(90.0)),
    shapes=SHAPES,
)


@pytest.fixture(autouse=True)
def without_gradients() -> Any:
    with torch.no_grad():
        yield


@pytest.fixture
def moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The file of another machine; its shapes are known with their dtypes as after a job."""
    from tests.agent.bundle import building

    probe = building.probe

    def with_dtypes(task: str, dims: str) -> Any:
        found = probe(task, dims)
        dtypes = {json.dumps(shape, sort_keys=True): ("float32", "float32") for shape in SHAPES}
        return type(found)(**{**vars(found), "dtypes_at": {**found.dtypes_at, **dtypes}})

    monkeypatch.setattr(building, "probe", with_dtypes)
    return imported(tmp_path, optimized_text([ONCE_FAST, FAST], task=SLOW_TASK, tree=Leaf(0), measured=THERE))


def test_choices_are_corrected_at_sizes_that_were_not_timed(moved: ModuleType, tmp_path: Path) -> None:
    model = moved.ModelNew(64)
    given = inputs(700)
    assert model.kernelwright_explain(*given) == "once_fast (llm)"
    found = model.kernelwright_recalibrate(tmp_path / "here.json", seconds=1.0)
    assert 1 <= len(found["shapes"]) <= 8
    assert (
        model.kernelwright_explain(*given)
        == "fast (human); recalibrated: predicted to be faster here than the tree's choice"
    )
    before = len(moved.calls)
    right(moved, model, *given)
    right(moved, model, *given)
    assert len(moved.calls) == before + 2
    twin = pickle.loads(pickle.dumps(model))
    assert twin.kernelwright_explain(*given) == model.kernelwright_explain(*given)
    assert twin.kernelwright_digest() == model.kernelwright_digest()
    other = moved.ModelNew(64).kernelwright_use(recalibration=tmp_path / "here.json")
    assert other.kernelwright_explain(*given) == model.kernelwright_explain(*given)
    racing = moved.ModelNew(64).kernelwright_use("verified", recalibration=tmp_path / "here.json")
    assert "times once_fast (llm), fast (human) beside it" in racing.kernelwright_explain(*given)
    assert not warned(lambda: model.kernelwright_use())
    assert model.kernelwright_explain(*given) == "once_fast (llm)"


def test_where_shapes_contradict_each_other_the_tree_keeps_its_word(moved: ModuleType) -> None:
    """A factor that is 10 at one shape and a tenth at the next says nothing of a third."""
    rows = [
        {"sizes": dict(shape), "logs": {"1": 2.3 * (-1) ** number, "2": 2.3 * (-1) ** (number // 2)}}
        for number, shape in enumerate(SHAPES)
    ]
    wild = moved._Corrections(rows)
    assert min(wild.doubts) > 2.0
    assert all(moved._corrected_choice(0, {}, ("", size, 64), wild) == 0 for size in (20, 100, 500, 2000))
    # The same at every shape is believed; the reference has none, and is the pivot.
    even = [{**row, "logs": {"1": 1.0, "2": 0.5}} for row in rows]
    assert moved._corrected_choice(0, {}, ("", 100, 64), moved._Corrections(even)) is None
    even = [{**row, "logs": {"1": 1.0, "2": -0.5}} for row in rows]
    assert moved._corrected_choice(0, {}, ("", 100, 64), moved._Corrections(even)) == 1


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda value: value["platform"].update(threads=77), "another platform: threads 77"),
        (lambda value: value.update(bundle="x"), "another bundle"),
        (lambda value: value["shapes"][0]["logs"].update({"1": 1e9}), "figures"),
        (lambda value: value["shapes"][0]["logs"].update({"3": 0.1}), "no member"),
        (lambda value: value["shapes"][0]["sizes"].update(rows="1; import os"), "other sizes"),
        (lambda value: value.update(shapes=value["shapes"] * 9), "too many"),
    ],
)
def test_a_recalibration_that_cannot_be_trusted_is_refused(
    moved: ModuleType, tmp_path: Path, change: Callable[[dict[str, Any]], Any], reason: str
) -> None:
    rows = [{"sizes": dict(SHAPES[0]), "logs": {"1": 1.0, "2": -0.5}}]
    value = {
        "schema": moved._CORRECTED,
        "bundle": moved.BUNDLE,
        "platform": moved._platform(0),
        "shapes": rows,
    }
    path = tmp_path / "here.json"

    def told(content: dict[str, Any], digest: str) -> list[str]:
        path.write_text(json.dumps({**content, "digest": digest}))
        return warned(lambda: moved.ModelNew(64).kernelwright_use(recalibration=path))

    assert not told(value, moved._digest_of(value))
    digest = moved._digest_of(value)
    change(value)
    assert "edited or damaged" in told(value, digest)[0]
    said = told(value, moved._digest_of(value))
    assert len(said) == 1
    assert reason in said[0]
    model = moved.ModelNew(64)
    warned(lambda: model.kernelwright_use(recalibration=value))
    assert model.kernelwright_explain(*inputs()) == "once_fast (llm)"


def test_inputs_may_be_given(moved: ModuleType) -> None:
    asked: list[dict[str, Any]] = []

    def make(sizes: dict[str, Any]) -> tuple[list[Any], list[torch.Tensor]]:
        asked.append(sizes)
        return [sizes["cols"]], inputs(sizes["rows"], sizes["cols"])

    found = moved.ModelNew(64).kernelwright_recalibrate(make=make, seconds=0.4)
    assert all(shape in SHAPES for shape in asked)
    assert 1 <= len(found["shapes"]) <= len(asked) == 8


def test_without_prices_it_says_what_to_do(tmp_path: Path) -> None:
    module = imported(tmp_path, optimized_text([FAST], task=SLOW_TASK))
    with pytest.raises(RuntimeError, match="verified"):
        module.ModelNew(64).kernelwright_recalibrate()


def test_another_number_of_threads_is_told_once(tmp_path: Path) -> None:
    module = imported(tmp_path, optimized_text([FAST], task=SLOW_TASK))
    module.JUDGED_WITH["threads"] = str(torch.get_num_threads())
    assert not warned(lambda: module.ModelNew(64))
    module.JUDGED_WITH["threads"] = "96"
    said = warned(lambda: [module.ModelNew(64) for _ in range(2)])
    assert len(said) == 1
    assert "judged with 96 threads" in said[0]
    assert "kernelwright_recalibrate" in said[0]
