"""The dialect: programs are exactly what their tokens say, held-out prompts were seen, and both kinds of source work as meant."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from rl.demo.dialect.grammar import Grammar
from rl.demo.dialect.tasks import FAMILIES, task_source, tasks
from rl.demo.dialect.tokenizer import NotExact, build_tokenizer, check
from rl.demo.prompts import prompt, score_bucket, score_word

ROOT = Path(__file__).resolve().parents[3]

#: Runs candidates beside their reference at a shape; prints by program whether the result is right.
_RUN = """
import importlib.util, json, sys, tempfile
from pathlib import Path
import torch
# Fresh memory is NaN: what an earlier program of the same results left there would hide what this one leaves out
torch.use_deterministic_algorithms(True, warn_only=True)
def module(text, name):
    path = Path(tempfile.mkdtemp()) / f"{name}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(name, path)
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[name] = loaded
    spec.loader.exec_module(loaded)
    # Triton 3.6's interpreter cannot make a loop's bound of an argument with NumPy 2.4
    loaded.range = lambda *bounds: range(*(b.handle.data.item() if hasattr(b, "handle") else b for b in bounds))
    return loaded
found = {}
for index, (name, task, source, shape) in enumerate(json.load(sys.stdin)):
    torch.manual_seed(0)
    reference = module(task, f"task{index}")
    inputs = reference.get_inputs(**shape)
    expected = reference.Model()(*inputs)
    given = module(source, f"candidate{index}").ModelNew()(*inputs)
    found[name] = torch.allclose(given, expected, rtol=1e-4, atol=1e-5)
print(json.dumps(found))
"""


@pytest.mark.parametrize(("device", "size"), [("cpu", "small"), ("cpu", "full"), ("cuda", "full")])
def test_every_program_is_read_as_its_phrases_and_written_back(device: str, size: str) -> None:
    grammar = Grammar(device, size)
    tokenizer = build_tokenizer(grammar)
    check(tokenizer, [(program.pieces, program.source) for program in grammar.programs])
    assert len(grammar.by_source) == len(grammar.programs)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_small_grammar_is_a_part_of_the_full_one(device: str) -> None:
    small, full = Grammar(device, "small"), Grammar(device, "full")
    assert set(small.by_source) < set(full.by_source)


def test_no_row_is_held_whole_by_too_few_warps() -> None:
    grammar = Grammar("cuda", "full")
    held = [dict(program.choices) for program in grammar.programs if "/whole/" in program.name]
    rows_a_warp = [int(one["tile"]) / int(one["warps"]) for one in held if one["variant"] == "whole"]
    assert max(rows_a_warp) == 2
    assert [len(grammar.of_family(family)) for family in FAMILIES] == [80, 68, 68, 68, 80]


def test_a_tokenizer_that_lacks_a_phrase_is_found_out() -> None:
    whole = Grammar("cpu", "small")
    part = replace(whole, families=("softmax",))
    with pytest.raises(NotExact):
        check(build_tokenizer(part), [(program.pieces, program.source) for program in whole.programs])


def test_a_phrase_that_swallows_others_is_found_out() -> None:
    grammar = Grammar("cpu", "small", ("row_sum",))
    program = grammar.programs[0]
    swallowed = (program.pieces[0] + program.pieces[1], *program.pieces[2:])
    with pytest.raises(NotExact):
        check(build_tokenizer(grammar), [(swallowed, program.source)])


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_held_out_shapes_are_new_and_their_prompts_are_not(device: str) -> None:
    train, held_out = tasks(device)
    assert not {task.name for task in train} & {task.name for task in held_out}
    assert {prompt(task) for task in held_out} <= {prompt(task) for task in train}
    assert {task.family for task in held_out} == set(FAMILIES)


def test_a_prompt_does_not_show_the_shape() -> None:
    train, _ = tasks("cpu")
    of_size = [task for task in train if (task.family, task.log2_elements) == ("softmax", 14)]
    assert len(of_size) > 1
    assert len({prompt(task) for task in of_size}) == 1


def test_scores_are_words_in_order() -> None:
    assert [score_bucket(speedup) for speedup in (0.01, 0.1, 8.0, 100.0)] == [0, 0, 23, 23]
    assert score_bucket(0.9) < score_bucket(1.2) < score_bucket(2.0)
    assert score_word(0.0) == "<score:failed>"


def run_candidates(
    rows: list[tuple[str, str, str, dict[str, int]]], environment: dict[str, str]
) -> dict[str, bool]:
    finished = subprocess.run(
        [sys.executable, "-c", _RUN],
        input=json.dumps(rows),
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )
    assert finished.returncode == 0, finished.stderr[-2000:]
    answer: dict[str, bool] = json.loads(finished.stdout.splitlines()[-1])
    return answer


def test_triton_programs_are_right_and_short_grids_are_not_where_tiles_do_not_divide() -> None:
    rows = []
    expected = {}
    for family in FAMILIES:
        for program in Grammar("cuda", "small").of_family(family):
            chosen = dict(program.choices)
            if chosen["warps"] != "2":
                continue  # nothing to an interpreter
            rows.append((program.name, task_source(family).source, program.source, {"rows": 17, "cols": 67}))
            divides = chosen["tile"] == "1"  # a row each: nothing is left over
            expected[program.name] = chosen["grid"] == "whole" or divides
    assert run_candidates(rows, {"TRITON_INTERPRET": "1"}) == expected
    assert False in expected.values()


def test_cpp_programs_are_right_and_dropped_tails_are_not(tmp_path: Path) -> None:
    rows = []
    expected = {}
    for family, tail in (("softmax", "kept"), ("transpose", "dropped")):
        program = next(
            program
            for program in Grammar("cpu", "small").of_family(family)
            if dict(program.choices)["tail"] == tail
        )
        rows.append((program.name, task_source(family).source, program.source, {"rows": 5, "cols": 67}))
        expected[program.name] = tail == "kept"
    for row in rows:  # each has its own library of the same name
        folder = tmp_path / row[0].replace("/", "_")
        folder.mkdir()
        assert run_candidates([row], {"TORCH_EXTENSIONS_DIR": str(folder)}) == {row[0]: expected[row[0]]}
