"""TUNABLES: what may be declared, and a substitution that changes nothing else."""

from __future__ import annotations

import ast
import random

import pytest

from agent.strategy.tunables import NotTunable, declared, substituted

FILE = """import torch

TUNABLES = {"BLOCK": [64, 128, 256], "SCALE": [0.5, -1.0], "MODE": ["fast", "small"]}
BLOCK = 128  # tuned; été
SCALE: float = -1.0; MODE = "fast"


def forward(x):
    return "BLOCK = 128", x * BLOCK
"""


def test_a_declaration_is_read_without_running_anything() -> None:
    found = declared("raise SystemExit\n" + FILE)
    assert found is not None
    assert found.count == 12
    assert found.chosen == {"BLOCK": 128, "SCALE": -1.0, "MODE": "fast"}
    assert declared("BLOCK = 1\n") is None


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("TUNABLES = dict(BLOCK=[1])\nBLOCK = 1", "literal"),
        ("TUNABLES = {'BLOCK': __import__('os').listdir()}\nBLOCK = 1", "literal"),
        ("TUNABLES = {'BLOCK': [1, 2]}", "no literal constant"),
        ("TUNABLES = {'BLOCK': [1, 2]}\nBLOCK = 1\nBLOCK = 2", "no literal constant"),
        (
            "TUNABLES = {'BLOCK': [1, 2]}\nBLOCK = 1\ndef f():\n    global BLOCK\n    BLOCK = 3",
            "no literal constant",
        ),
        ("TUNABLES = {'BLOCK': [1, 2]}\nBLOCK = len('ab')", "no literal constant"),
        ("TUNABLES = {'BLOCK': 4}\nBLOCK = 1", "list"),
        ("TUNABLES = {'BLOCK': [[1]]}\nBLOCK = 1", "numbers and short texts"),
        ("TUNABLES = {'BLOCK': ['x' * 1]}\nBLOCK = 1", "literal"),
        ("TUNABLES = {'BLOCK': ['" + "x" * 65 + "']}\nBLOCK = 1", "numbers and short texts"),
        ("TUNABLES = {'BLOCK': [1e999]}\nBLOCK = 1", "numbers and short texts"),
        ("TUNABLES = {}", "1 to 8"),
        ("TUNABLES = {'BLOCK': [1]}\nTUNABLES = {'BLOCK': [2]}\nBLOCK = 1", "once"),
        ("class ModelNew(:", "parse"),
    ],
)
def test_what_cannot_be_used_is_refused_with_a_reason(source: str, words: str) -> None:
    with pytest.raises(NotTunable, match=words):
        declared(source)


def test_numbers_without_end_are_refused() -> None:
    digits = "0x" + "f" * 20_000  # as text Python refuses to make of it
    for source in (f"A = 1\nTUNABLES = {{'A': [1, {digits}]}}\n", f"A = {digits}\nTUNABLES = {{'A': [1]}}\n"):
        with pytest.raises(NotTunable):
            declared(source)
    with pytest.raises(NotTunable) as caught:
        declared("TUNABLES = {'" + "n" * 100_000 + "': [1]}\n")
    assert len(str(caught.value)) < 200


def test_only_the_constants_change() -> None:
    made = substituted(FILE, {"BLOCK": 64, "SCALE": 0.5, "MODE": "small"})
    assert made == FILE.replace("BLOCK = 128  #", "BLOCK = 64  #").replace("= -1.0;", "= 0.5;").replace(
        'MODE = "fast"', "MODE = 'small'"
    )
    assert substituted(made, {"BLOCK": 128, "SCALE": -1.0}).count("128") == FILE.count("128")


def test_a_text_value_cannot_become_code() -> None:
    made = substituted(FILE, {"MODE": "'; import os #"})
    values = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in ast.parse(made).body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    assert values["MODE"] == "'; import os #"
    assert len(ast.parse(made).body) == len(ast.parse(FILE).body)
    with pytest.raises(NotTunable):
        substituted(FILE, {"MODE": "two\nlines"})
    with pytest.raises(NotTunable):
        substituted(FILE, {"forward": 1})


def test_settings_begin_with_the_file_s_own_and_are_distinct() -> None:
    found = declared(FILE)
    assert found is not None
    every = found.settings(128, random.Random(0))
    assert every[0] == found.chosen
    assert len({str(one) for one in every}) == len(every) == 12
    some = found.settings(5, random.Random(0))
    assert some[0] == found.chosen
    assert len({str(one) for one in some}) == 5
    assert some == found.settings(5, random.Random(0))


def test_a_huge_space_is_drawn_from_without_being_listed() -> None:
    names = [f"N{number}" for number in range(8)]
    values = list(range(32))
    source = f"TUNABLES = {dict.fromkeys(names, values)}\n" + "".join(f"{name} = 0\n" for name in names)
    found = declared(source)
    assert found is not None
    assert found.count == 32**8
    assert len(found.settings(128, random.Random(0))) == 128
