"""Rewrites that change nothing share a normal form with the original; small real changes never do."""

from __future__ import annotations

import itertools

import pytest

from agent.strategy.normal_form import normal_form
from agent.strategy.novelty import fingerprint
from kernelbench_tasks import catalog

KERNEL = '''
"""A kernel."""
import torch
import torch.nn as nn
import triton
import triton.language as tl

BLOCK = 128
WARPS = 4
SOURCE = """
#include <torch/extension.h>
#define TWICE(x) ((x) + (x))  // macro
#pragma omp simd
/* adds */
float add(float a, float b) {
    return a + TWICE(b);  // sum
}
"""


@triton.jit
def scale(x_ptr, y_ptr, n, factor, BLOCK: tl.constexpr):
    """Scales."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # where
    mask = offsets < n
    values = tl.load(x_ptr + offsets, mask=mask, other=0.0)
    tl.store(y_ptr + offsets, factor * values, mask=mask)


def blocks(count, width):
    return (count + width - 1) // width


library = torch.utils.cpp_extension.load_inline("adds", [SOURCE], functions=["add"])


class Half(nn.Module):
    def forward(self, x):
        return x / 2


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.half = Half()

    @torch.no_grad()
    def forward(self, x, bias=None):
        y = torch.empty_like(x)
        rest = 3 if x.dim() > 1 else 4
        for step in range(rest):
            count = blocks(x.numel(), BLOCK)
            scale[(count,)](x, y, x.numel(), 2.0, BLOCK=BLOCK, num_warps=WARPS)
        with torch.no_grad():
            y = y - self.half(x)
        return library.add(y, x)
'''


def swapped(old: str, new: str, *more: tuple[str, str]) -> str:
    text = KERNEL
    for before, after in ((old, new), *more):
        assert before in text, before
        text = text.replace(before, after)
    return text


def appended(text: str) -> str:
    return KERNEL + text


SAME = {
    "comments": swapped("# where", "# there", ("y = y - self", "# now\n            y = y - self")),
    "docstrings": swapped('    """Scales."""\n', "", ('"""A kernel."""', '"""Another."""')),
    "a docstring more": swapped("    def forward(self, x):\n", '    def forward(self, x):\n        """Halves."""\n'),
    "a text as a comment": swapped("        y = torch.empty_like(x)\n", '        "the output"\n        y = torch.empty_like(x)\n'),
    "layout": swapped("(count + width - 1) // width", "(\n        count + width\n        - 1\n    ) // width"),
    "a local": swapped("offsets", "places", ("mask", "inside"), ("inside=", "mask=")),
    "a loop's name": swapped("for step in", "for _ in"),
    "a parameter": swapped("factor", "weight"),
    "parameters of a function": swapped("count, width", "a, b", ("(count + width - 1) // width", "(a + b - 1) // b")),
    "a function's name": swapped("blocks", "ceiling_of"),
    "a kernel's name": swapped("scale", "times"),
    "a class's name": swapped("Half", "OneOfTwo"),
    "a constant's name": swapped("WARPS", "N_WARPS"),
    "an unused function": appended("\ndef spare(x):\n    return torch.relu(x) + spare(x)\n"),
    "an unused class": appended("\nclass Spare(nn.Module):\n    def forward(self, x):\n        return helper(x)\n"
                                "\ndef helper(x):\n    return x\n"),
    "an unused constant": swapped("WARPS = 4\n", "WARPS = 4\nSTAGES = 3\nNAMES = ('a', STAGES, {'b': [1, -2]})\n"),
    "a program's part": appended("\nif __name__ == '__main__':\n    model = ModelNew()\n    print(model)\n"),
    "C comments": swapped("  // sum", "", ("/* adds */", "/* the\n sum */ // of both"), ("  // macro", "")),
    "C layout": swapped("    return a + TWICE(b);", "  return a+TWICE( b ) ;", ("float a, float b) {", "float a,\n  float b)\n{")),
}  # fmt: skip

DIFFERENT = {
    "a constant": swapped("2.0", "2.5"),
    "a constant's type": swapped("2.0", "2"),
    "a tile": swapped("BLOCK = 128", "BLOCK = 256"),
    "num_warps": swapped("WARPS = 4", "WARPS = 8"),
    "an argument's name": swapped("num_warps=", "num_stages="),
    "an operator": swapped("offsets < n", "offsets <= n"),
    "a floor": swapped("- 1) // width", "- 1) / width"),
    "arguments' order": swapped("(x, y, x.numel()", "(y, x, x.numel()"),
    "parameters' order": swapped("count, width", "width, count"),
    "operands' order": swapped("y - self.half(x)", "self.half(x) - y"),
    "another variable": swapped("factor * values", "factor * offsets"),
    "a decorator less": swapped("    @torch.no_grad()\n", ""),
    "a decorator more": swapped("    def __init__(self)", "    @torch.no_grad()\n    def __init__(self)"),
    "a decorator's setting": swapped("@triton.jit\n", "@triton.jit(do_not_specialize=['n'])\n"),
    "a method's name": swapped("    def forward(self, x):\n        return x / 2", "    def backward(self, x):\n        return x / 2"),
    "an attribute": swapped("self.half = Half()", "self.part = Half()", ("self.half(x)", "self.part(x)")),
    "a parameter of the model's": swapped("bias=None", "shift=None"),
    "a default": swapped("bias=None", "bias=1"),
    "a mask": swapped("values, mask=mask", "values"),
    "a padding": swapped("other=0.0", "other=1.0"),
    "an annotation": swapped("BLOCK: tl.constexpr", "BLOCK"),
    "a loop": swapped("range(rest)", "range(rest - 1)"),
    "a condition": swapped("x.dim() > 1", "x.dim() > 2"),
    "a base": swapped("class Half(nn.Module)", "class Half(torch.nn.Identity)"),
    "an import missing": swapped("import triton\n", ""),
    "an import that may fail": swapped("import triton\n", "import triton\nimport cupy\n"),
    "a part that may not be there": swapped("import triton\n", "import triton\nfrom torch import no_such_thing\n"),
    "an effect": swapped("BLOCK = 128\n", "BLOCK = 128\ntorch.set_num_threads(1)\n"),
    "an effect of an unused local": swapped("        y = torch.empty_like(x)\n", "        y = torch.empty_like(x)\n        z = torch.manual_seed(1)\n"),
    "an unused local that may fail": swapped("        y = torch.empty_like(x)\n", "        y = torch.empty_like(x)\n        z = nowhere\n"),
    "an unused local too early": swapped("        y = torch.empty_like(x)\n", "        z = rest\n        y = torch.empty_like(x)\n"),
    "a branch that makes a name local": swapped("        y = torch.empty_like(x)\n", "        if False:\n            blocks = 1\n        y = torch.empty_like(x)\n"),
    "a branch that makes a generator": swapped("        y = torch.empty_like(x)\n", "        if False:\n            yield x\n        y = torch.empty_like(x)\n"),
    "too late": swapped("BLOCK = 128\n", "", ("library =", "FIRST = torch.ones(WIDTH)\nWIDTH = 3\nBLOCK = 128\nlibrary =")),
    "in time": swapped("BLOCK = 128\n", "", ("library =", "WIDTH = 3\nFIRST = torch.ones(WIDTH)\nBLOCK = 128\nlibrary =")),
    "a text": swapped('"adds"', '"sums"'),
    "which function": swapped('functions=["add"]', 'functions=["sub"]'),
    "a C operator": swapped("a + TWICE", "a - TWICE"),
    "a C sign apart": swapped("a + TWICE", "a + +TWICE"),
    "a C sign together": swapped("a + TWICE", "a++TWICE"),
    "a C directive": swapped("#pragma omp simd\n", ""),
    "a C directive's end": swapped("#pragma omp simd\n/* adds */\n", "#pragma omp simd /* adds */"),
    "a C macro": swapped("#define TWICE(x) ", "#define TWICE (x) "),
    "a C text": swapped("    return a", '    puts("a // b");\n    return a'),
    "another C text": swapped("    return a", '    puts("a  // b");\n    return a'),
    "a third C text": swapped("    return a", '    puts("a // c");\n    return a'),
    "a placeholder": swapped("[SOURCE]", "[SOURCE.replace('/* adds */', 'x')]"),
    "another placeholder": swapped("/* adds */", "/* subs */", ("[SOURCE]", "[SOURCE.replace('/* adds */', 'x')]")),
    "a global that is asked for by name": swapped("WARPS = 4\n", "WARPS = 4\nhidden = 5\n", ("=WARPS", "=globals()['hidden']")),
    "another one": swapped("WARPS = 4\n", "WARPS = 4\nhidden = 6\n", ("=WARPS", "=globals()['hidden']")),
    "what is evaluated": swapped("num_warps=WARPS", "num_warps=eval('rest')"),
    "a name for what is evaluated": swapped("num_warps=WARPS", "num_warps=eval('rest')", ("rest =", "other ="), ("range(rest)", "range(other)")),
    "tunables": swapped("WARPS = 4\n", "WARPS = 4\nTUNABLES = {'WARPS': [4, 8]}\n"),
    "other tunables": swapped("WARPS = 4\n", "WARPS = 4\nTUNABLES = {'WARPS': [4, 16]}\n"),
    "another module by the same name": swapped("import torch.nn as nn", "import torch.nn.utils as nn"),
    "a name that hides an import": swapped("bias=None", "bias=None, torch=None"),
    "an import beside one that is hidden": swapped("bias=None", "bias=None, torch=None", ("torch.empty_like", "nn.functional.relu")),
    "what hides an import": swapped("bias=None", "bias=None, torch=None", ("torch.empty_like", "torch.nn.functional.relu")),
    "a method called as its local": swapped("def forward(self, x):\n        return x / 2", "def left(self, x):\n        left = x / 2\n        return left"),
    "another so": swapped("def forward(self, x):\n        return x / 2", "def right(self, x):\n        right = x / 2\n        return right"),
}  # fmt: skip


@pytest.mark.parametrize("name", SAME)
def test_what_cannot_matter_is_not_in_the_normal_form(name: str) -> None:
    assert SAME[name] != KERNEL
    assert normal_form(SAME[name]) == normal_form(KERNEL)


def test_every_real_change_shows_in_the_normal_form() -> None:
    forms = {name: normal_form(text) for name, text in {"": KERNEL, **DIFFERENT}.items()}
    assert None not in forms.values()
    alike = [(one, two) for one, two in itertools.combinations(forms, 2) if forms[one] == forms[two]]
    assert alike == []


def test_rewrites_of_several_kinds_at_once_make_nothing_new() -> None:
    text = KERNEL
    for old, new in (("offsets", "o"), ("blocks", "parts"), ("# where", "")):
        text = text.replace(old, new)
    assert fingerprint(text + "\ndef spare():\n    pass\n") == fingerprint(KERNEL)


def test_what_is_no_python_or_too_deep_has_none() -> None:
    assert normal_form("class ModelNew(:") is None
    assert normal_form("x\0") is None
    assert normal_form("x = " + "(" * 5000 + ")" * 5000) is None


def test_a_normal_form_of_every_task_is_python_and_its_own() -> None:
    tasks = [task.source.replace("class Model(", "class ModelNew(") for task in catalog.list_tasks()]
    forms = [normal_form(text) for text in tasks]
    assert None not in forms
    # two are one module, called in two directions
    assert len(set(forms)) == len(tasks) - 1
    for form in forms:
        compile(str(form), "form", "exec")
