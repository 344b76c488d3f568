"""Cutting sources down and renaming what collides, without changing what they mean."""

from __future__ import annotations

import ast

import pytest

from agent.bundle.renaming import rename
from agent.bundle.sections import cut, indented, rename_collisions
from agent.errors import AssemblyError

REFERENCE = '''"""The task."""

from __future__ import annotations

import torch
import torch.nn as nn
from kernelbench_tasks import Dim

DIMS = {"n": Dim(1, 8)}
# the slope of the leak
SLOPE = 0.1
batch = 16


def leak(x):
    """Leaky."""
    return torch.where(x > 0, x, x * SLOPE)


class Model(nn.Module):
    def forward(self, x):
        return leak(x)


def get_inputs(n=batch):
    return [torch.randn(n)]


if __name__ == "__main__":
    print(Model()(*get_inputs()))
'''


def test_keeps_what_the_class_needs_with_its_comments() -> None:
    section = cut(REFERENCE, "Model")
    assert "# the slope of the leak\nSLOPE = 0.1" in section.text
    assert "def leak" in section.text
    for gone in ("get_inputs", "DIMS", "kernelbench_tasks", "__main__", "__future__", "batch"):
        assert gone not in section.text
    assert section.futures == {"annotations"}
    assert section.names["nn"] == "torch.nn"
    assert section.names["SLOPE"] is None


def test_keeps_statements_with_effects_and_what_they_use() -> None:
    source = "import torch\nlibrary = torch.library.Library('x', 'DEF')\nNAME = 'a'\nprint(NAME)\nclass Model: pass\n"
    text = cut(source, "Model").text
    assert "Library" in text
    assert "NAME = 'a'" in text


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("def f(:\n", "parse"),
        ("class Other: pass\n", "define"),
        ("from kernelbench_tasks import Dim\nclass Model:\n    dim = Dim(1, 2)\n", "without it"),
    ],
)
def test_says_what_stands_in_the_way(source: str, words: str) -> None:
    with pytest.raises(AssemblyError, match=words):
        cut(source, "Model")


def test_the_same_import_under_the_same_name_is_no_collision() -> None:
    section = cut(
        "from torch import nn\nimport torch.nn.functional as F\nclass ModelNew(nn.Module): f = F\n",
        "ModelNew",
    )
    taken = {"nn": "torch.nn", "F": "torch.nn.functional"}
    assert rename_collisions(section, taken, "_1", {}).text == section.text


def test_collisions_are_renamed_and_the_rest_of_the_text_stays() -> None:
    source = (
        "import math as F\n"
        "eps = 1  # eps stays in comments\n"
        "def get(eps=eps, *, q=lambda eps: eps):\n"
        "    return eps, 'eps', dict(eps=1)\n"
        "def put():\n"
        "    global eps\n"
        "    eps = [eps for eps in range(F.floor(eps))]\n"
        "class ModelNew:\n"
        "    def run(self, x):\n"
        "        self.eps = eps\n"
        "        return get(eps=eps), get, put\n"
    )
    section = cut(source, "ModelNew")
    renamed = rename_collisions(
        section, {"eps": None, "F": "torch.nn.functional"}, "_1", {"ModelNew": "Member1"}
    )
    assert renamed.text == (
        "import math as F_1\n"
        "eps_1 = 1  # eps stays in comments\n"
        "def get(eps=eps_1, *, q=lambda eps: eps):\n"
        "    return eps, 'eps', dict(eps=1)\n"
        "def put():\n"
        "    global eps_1\n"
        "    eps_1 = [eps for eps in range(F_1.floor(eps_1))]\n"
        "class Member1:\n"
        "    def run(self, x):\n"
        "        self.eps = eps_1\n"
        "        return get(eps=eps_1), get, put\n"
    )


def test_names_inside_f_strings_are_renamed_too() -> None:
    text = rename("n = 3\nclass A:\n    text = f'{n} é {n!r:>{n}}'\n", {"n": "m"})
    scope: dict[str, object] = {}
    exec(text, scope)
    assert scope["A"].text == "3 é   3"  # type: ignore[attr-defined]


def test_a_plain_dotted_import_cannot_be_renamed() -> None:
    section = cut("import os.path\nclass ModelNew: p = os.path\n", "ModelNew")
    with pytest.raises(AssemblyError, match="'os'"):
        rename_collisions(section, {"os": None}, "_1", {})


def test_a_new_name_never_hits_an_old_one() -> None:
    section = cut("a = 1\na_1 = 2\nclass ModelNew: both = (a, a_1)\n", "ModelNew")
    renamed = rename_collisions(section, {"a": None}, "_1", {})
    assert "both = (a_1_, a_1)" in renamed.text


def test_indenting_leaves_the_inside_of_strings_alone() -> None:
    text = 'S = r"""\n#include <x>\n  deep\n"""\nif S:\n    f = f"""\n{S}\n"""\n'
    pushed = "try:\n" + indented(text) + "\nfinally:\n    pass\n"
    before: dict[str, object] = {}
    after: dict[str, object] = {}
    exec(text, before)
    exec(pushed, after)
    assert (after["S"], after["f"]) == (before["S"], before["f"])
    assert ast.parse(pushed)
