"""The dispatcher's other modes: how one is asked for, frozen memos, one pinned member; and that explain says what runs."""

from __future__ import annotations

import copy
import io
import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from agent.bundle.measured import Measured
from agent.dispatch.features import Feature
from agent.dispatch.tree import Leaf, Split
from tests.agent.bundle.building import imported, inputs, optimized_text, right, warned
from tests.agent.bundle.modal import FAST, SLOW_IF_LARGE, SLOW_TASK, WRONG_AT_48

pytestmark = pytest.mark.alone

TEXT_ARGUMENTS: dict[str, Any] = {
    "task": SLOW_TASK,
    "tree": Split(Feature("size", ("rows",)), 100, Leaf(0), Leaf(1)),
    "measured": Measured(worst_cases=(0.9, 1.2)),
}


@pytest.fixture(autouse=True)
def without_gradients() -> Any:
    with torch.no_grad():
        yield


@pytest.fixture(scope="module")
def text() -> str:
    return optimized_text([SLOW_IF_LARGE, FAST], **TEXT_ARGUMENTS)


@pytest.fixture
def optimized(tmp_path: Path, text: str) -> ModuleType:
    """Sluggish up to 100 rows, fast beyond: by the tree."""
    return imported(tmp_path, text)


def who(module: ModuleType, call: Callable[[], Any]) -> str:
    """Which member ran during a call."""
    before = len(module.calls_sluggish), len(module.calls)
    call()
    after = len(module.calls_sluggish), len(module.calls)
    return {(0, 0): "reference", (1, 0): "sluggish", (0, 1): "fast"}.get(
        (after[0] - before[0], after[1] - before[1]), "several"
    )


def memo_of(module: ModuleType, folder: Path, rows: tuple[int, ...] = (32, 1024)) -> Path:
    """A memo's file with what was found at these rows."""
    model = module.ModelNew(64).kernelwright_use("verified", seconds=30.0)
    for count in rows:
        model(*inputs(count))
    model.kernelwright_save(folder / "memo.json")
    return folder / "memo.json"


@pytest.mark.parametrize(
    "settings",
    [
        {"mode": "static"},
        {"mode": "verified", "seconds": 30.0},
        {"mode": "frozen"},
        {"mode": "frozen", "unknown": "reference"},
        {"batch_invariant": True},
        {"batch_invariant": True, "member": "sluggish"},
        {"batch_invariant": True, "member": "reference"},
    ],
    ids=str,
)
def test_explain_names_what_runs(optimized: ModuleType, settings: dict[str, Any]) -> None:
    warm = optimized.ModelNew(64).kernelwright_use("verified", seconds=30.0)
    warm(*inputs(32))
    model = optimized.ModelNew(64).kernelwright_use(**settings)
    for rows in (32, 32, 1024, 1024, 5000):
        given = inputs(rows)
        said = model.kernelwright_explain(*given)
        ran = who(optimized, lambda given=given: right(optimized, model, *given))
        if "not seen yet" in said:
            assert said.startswith("reference") and ran == "several"
        else:
            assert said.partition(" (")[0].partition(":")[0] == ran, said


def test_a_frozen_memo_times_nothing_and_says_the_same_everywhere(
    optimized: ModuleType, text: str, tmp_path: Path
) -> None:
    memo = memo_of(optimized, tmp_path)
    (tmp_path / "elsewhere").mkdir()
    rank = imported(tmp_path / "elsewhere", text)
    rank._race_at = None  # would fail
    one = optimized.ModelNew(64).kernelwright_use("frozen", memo=memo)
    other = rank.ModelNew(64).kernelwright_use("frozen", memo=str(memo))
    assert one.kernelwright_digest() == other.kernelwright_digest()
    for rows in (32, 1024, 7, 300):
        given = inputs(rows)
        assert one.kernelwright_explain(*given) == other.kernelwright_explain(*given)
        right(rank, other, *given)
    assert "not in the memo, so the tree's choice" in other.kernelwright_explain(*inputs(7))
    strict = rank.ModelNew(64).kernelwright_use("frozen", memo=memo, unknown="reference")
    assert who(rank, lambda: strict(*inputs(7))) == "reference"
    assert strict.kernelwright_digest() != other.kernelwright_digest()
    rank._memo.forget()
    rank.ModelNew(64).kernelwright_use("verified", memo=memo)
    assert len(rank._memo.held) == 2, "and the verified mode goes on from it"


def test_a_digest_changes_with_the_choices_alone(optimized: ModuleType) -> None:
    model = optimized.ModelNew(64).kernelwright_use("verified", seconds=30.0)
    model(*inputs(32))
    at, (found, _) = next(iter(optimized._memo.held.items()))

    def digest(**change: Any) -> str:
        optimized._memo.put(at, found._replace(**change))
        return str(model.kernelwright_digest())

    assert digest(rounds=99, speedups={0: (2.0, 1.9, 2.1)}) == digest(rounds=8)
    assert digest(runs=1) != digest(runs=0)
    assert digest(runs=None, wrong=(0,)) != digest(runs=None)


def resealed(module: ModuleType, change: Callable[[dict[str, Any]], Any]) -> Callable[[str], str]:
    """An edit by someone who mends the digest, too."""

    def edit(text: str) -> str:
        value = json.loads(text)
        change(value)
        value.pop("digest")
        return json.dumps({**value, "digest": module._digest_of(value)})

    return edit


def first(**change: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda value: value["entries"][0].update(change)


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (lambda text: text[: len(text) // 2], "no JSON"),
        (lambda text: "[" * 100_000, "no JSON"),
        (lambda text: "[]", "no memo of this form"),
        (lambda text: text.replace('"runs": 2', '"runs": 1'), "edited or damaged"),
        (lambda text: text.replace('"threads": ', '"threads": 1'), "edited or damaged"),
        (lambda value: value["platform"].update(threads=96), "another platform: threads 96 and not"),
        (lambda value: value["platform"].update(device_name="H200"), "another platform: device_name H200"),
        (lambda value: value.update(bundle="0" * 64), "another bundle"),
        (first(runs=3), "names no member"),
        (first(runs=True), "names no member"),
        (first(runs="__import__('os').system('false')"), "names no member"),
        (first(wrong=[1, 2]), "its result is another one"),
        (first(sizes=[32, {"x": 1}]), "a size is none"),
        (first(sizes=[32]), "other dimensions"),
        (first(dtypes=["float32", "load"]), "other dtypes"),
        (first(speedups={"1": [1.0, 2.0, -1.0]}), "figures"),
        (first(made=["x"]), "another form"),
    ],
)
def test_a_memo_that_cannot_be_trusted_is_refused_with_one_warning(
    optimized: ModuleType, tmp_path: Path, edit: Callable[[Any], Any], reason: str
) -> None:
    memo = memo_of(optimized, tmp_path, (1024,))
    text = memo.read_text()
    try:
        edited = edit(text)
    except (AttributeError, TypeError):  # it edits the value
        edited = resealed(optimized, edit)(text)
    if not isinstance(edited, str):
        edited = resealed(optimized, edit)(text)
    assert edited != text
    memo.write_text(edited)
    optimized._memo.forget()
    models: list[Any] = []

    def load() -> None:
        for mode in ("frozen", "verified", "frozen"):
            models.append(optimized.ModelNew(64).kernelwright_use(mode, memo=memo))

    said = warned(load)
    assert len(said) == 1
    assert reason in said[0]
    assert "kernelwright_save" in said[0]
    assert not optimized._memo.held
    models[1](*inputs(3))
    assert memo.read_text() == edited, "nor is it overwritten"
    assert models[0].kernelwright_explain(*inputs(1024)).startswith("fast (human); frozen: not in the memo")


def test_a_memo_that_is_not_there(optimized: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "none.json"
    assert "cannot be read" in warned(lambda: optimized.ModelNew(64).kernelwright_use("frozen", memo=path))[0]
    model = optimized.ModelNew(64)
    assert not warned(lambda: model.kernelwright_use("verified", memo=path)), "it begins with this one"
    model(*inputs(32))
    assert len(json.loads(path.read_text())["entries"]) == 1
    model(*inputs(33))
    assert len(json.loads(path.read_text())["entries"]) == 2
    model.kernelwright_use("verified", memo=tmp_path / "no folder" / "memo.json")
    assert "cannot be kept" in warned(lambda: model(*inputs(34)))[0]


def test_one_member_for_all_sizes(optimized: ModuleType) -> None:
    model = optimized.ModelNew(64).kernelwright_use(batch_invariant=True)
    for rows in (1, 32, 100, 101, 1024):
        assert who(optimized, lambda rows=rows: model(*inputs(rows))) == "fast", "its worst case is the best"
    assert "at worst 1.20x" in model.kernelwright_explain(*inputs(1))
    given = inputs(300)
    whole = model(*given)
    assert all(torch.equal(model(*[x[:rows] for x in given]), whole[:rows]) for rows in (1, 50, 299))
    assert who(optimized, lambda: model(*inputs(5000))) == "reference"
    for name in ("sluggish", 1, "1", "sluggish (llm)"):
        model.kernelwright_use(batch_invariant=True, member=name)
        assert who(optimized, lambda: model(*inputs(300))) == "sluggish"


@pytest.mark.parametrize(
    "settings",
    [
        {"mode": "dynamic"},
        {"batch_invariant": True, "member": "another"},
        {"batch_invariant": True, "member": 3},
        {"batch_invariant": True, "mode": "verified"},
        {"member": "fast"},
        {"mode": "frozen", "unknown": "time it"},
        {"mode": "verified", "seconds": 0},
        {"mode": "verified", "most": 0},
    ],
    ids=str,
)
def test_settings_that_make_no_sense_are_refused_and_change_nothing(
    optimized: ModuleType, settings: dict[str, Any]
) -> None:
    model = optimized.ModelNew(64).kernelwright_use(batch_invariant=True)
    with pytest.raises(ValueError, match=r"."):
        model.kernelwright_use(**settings)
    assert "pinned" in model.kernelwright_explain(*inputs())


@pytest.mark.parametrize("mode", ["verified", "frozen", "batch_invariant"])
def test_compilers_copies_and_pickles_in_every_mode(optimized: ModuleType, tmp_path: Path, mode: str) -> None:
    model = optimized.ModelNew(64).eval()
    keys = list(model.state_dict())
    if mode == "batch_invariant":
        model.kernelwright_use(batch_invariant=True)
    else:
        memo_of(optimized, tmp_path)
        model.kernelwright_use(mode, memo=tmp_path / "memo.json")
    given = inputs(77)
    expected = optimized.Model.forward(model, *given)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*given), expected)
    rows = torch.export.Dim("rows", min=2, max=4096)
    program = torch.export.export(model, tuple(inputs()), dynamic_shapes=({0: rows}, {0: rows}))
    torch.testing.assert_close(program.module()(*given), expected)
    assert not any(key[1] == 77 for key in optimized._memo.entries(0)), "nothing was timed under a compiler"
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for twin in (
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)),
        torch.load(file, weights_only=False),
    ):
        assert list(twin.state_dict()) == keys
        assert twin.kernelwright_explain(*inputs(32)) == model.kernelwright_explain(*inputs(32))
        assert twin.kernelwright_digest() == model.kernelwright_digest()
        twin.weight.add_(1.0)
        right(optimized, twin, *given)
    right(optimized, model, *given)
    fresh = optimized.ModelNew(64)
    fresh.load_state_dict(model.state_dict(), strict=True)
    assert model.kernelwright_use() is model
    assert model.kernelwright_explain(*inputs(32)) == "sluggish (llm)"


def test_a_program_is_told_by_its_environment(
    optimized: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memo_of(optimized, tmp_path)
    (tmp_path / "memo.json").rename(tmp_path / f"memo-{optimized.BUNDLE[:16]}.json")
    for asked, words in (
        ("static", "sluggish (llm)"),
        ("verified", "verified: timed"),
        (f"frozen:{tmp_path}", "frozen: timed"),
        ("batch_invariant", "pinned"),
        ("batch_invariant:2", "fast (human); pinned"),
    ):
        monkeypatch.setenv("KERNELWRIGHT_DISPATCH", asked)
        assert words in optimized.ModelNew(64).kernelwright_explain(*inputs(32)), asked
    monkeypatch.setenv("KERNELWRIGHT_DISPATCH", "fastest")
    said = warned(lambda: [optimized.ModelNew(64) for _ in range(2)])
    assert len(said) == 1
    assert "KERNELWRIGHT_DISPATCH=fastest is not followed" in said[0]
    assert optimized.ModelNew(64).kernelwright_explain(*inputs(32)) == "sluggish (llm)"


PROGRAM = """
import sys, torch
import optimized
with torch.no_grad():
    model = optimized.ModelNew(64)
    x = torch.randn(4, 64)
    torch.testing.assert_close(model(x, x), optimized.Model.forward(model, x, x))
    torch.testing.assert_close(model(x, x), optimized.Model.forward(model, x, x))
    print(model.kernelwright_explain(x, x))
    print(sorted(name for name in sys.modules if name.partition(".")[0] in ("agent", "evaluator", "numpy", "sklearn", "scipy")
                 and name in ("agent", "evaluator", "sklearn", "scipy")))
"""


def test_alone_in_a_folder_it_verifies(tmp_path: Path, text: str) -> None:
    (tmp_path / "optimized.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "-s", "-c", PROGRAM],
        cwd=tmp_path,
        env={"KERNELWRIGHT_DISPATCH": "verified", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    said, loaded = done.stdout.splitlines()
    assert "verified: timed over" in said
    assert loaded == "[]"


def test_what_was_wrong_once_stays_wrong_in_a_frozen_memo(tmp_path: Path) -> None:
    module = imported(tmp_path, optimized_text([WRONG_AT_48], task=SLOW_TASK))
    model = module.ModelNew(64).kernelwright_use("verified", seconds=30.0)
    assert len(warned(lambda: model(*inputs(48)))) == 1
    model.kernelwright_save(tmp_path / "memo.json")
    model.kernelwright_use("frozen", memo=tmp_path / "memo.json")
    right(module, model, *inputs(48))
    assert "gave another result there" in model.kernelwright_explain(*inputs(48))


def test_a_member_beside_the_tree_is_built_for_the_modes_that_may_choose_it(tmp_path: Path) -> None:
    module = imported(tmp_path, optimized_text([SLOW_IF_LARGE, FAST], task=SLOW_TASK, tree=Leaf(0)))
    model = module.ModelNew(64)
    assert module.NOT_IN_TREE == (1,)
    model(*inputs())
    assert model._kw_dispatch.known[0][0][1] is None, "nobody asks for it"
    model.kernelwright_use("verified", seconds=30.0)
    model(*inputs(1024))
    assert model.kernelwright_explain(*inputs(1024)).startswith("fast (human); verified")
    model.kernelwright_use()
    assert who(module, lambda: model(*inputs(1024))) == "sluggish"


def test_what_is_remembered_of_the_tree_is_what_it_says_and_is_bounded(optimized: ModuleType) -> None:
    dispatch = optimized.ModelNew(64)._kw_dispatch
    for dtype in (torch.float32, torch.float64):
        whole = torch.empty(4096, 64, dtype=dtype)
        for rows in range(1, 4097):
            x = whole[:rows]
            asked = [optimized._choose(dispatch.fixed, dispatch.tree, x, x) for _ in range(2)]
            assert (
                asked
                == [optimized._choose_by_size(dispatch.fixed, dispatch.tree, x, x)] * 2
                == [int(rows > 100)] * 2
            )
            assert len(dispatch.tree.seen) <= 4096
    x, residual = inputs(32)
    assert "belong together" in optimized._choose(dispatch.fixed, dispatch.tree, x, residual[:31])
    other = optimized.ModelNew(128)._kw_dispatch
    assert "constructor" in optimized._choose(other.fixed, other.tree, x, residual), "each model has its own"
