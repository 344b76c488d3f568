"""The library's kernels in generated code: which calls change, and that the text stands alone."""

from __future__ import annotations

import ast
from collections.abc import Callable

import pytest

from agent.bundle.sections import bound_names
from agent.kernels.writing import as_replayed, kernels, rewriting_text, with_library

MODULE = """
from torch._inductor.select_algorithm import extern_kernels

def call(args):
    extern_kernels.mm(a, reinterpret_tensor(b, (4, 4), (1, 4), 0), out=buf0)
    extern_kernels.bias_addmm(c, a, b, alpha=1, beta=1, out=buf1)
    buf2 = extern_kernels.convolution(x, w, stride=(1, 1), padding=(0, 0), dilation=(1, 1), transposed=False, output_padding=(0, 0), groups=1, bias=None)
    buf3 = extern_kernels._mm_plus_mm(a, b, c, d)
"""


def test_products_and_convolutions_become_calls_of_the_library() -> None:
    text, operations = with_library(MODULE)
    assert operations == ("addmm", "convolution", "mm")
    assert "library_mm(a, reinterpret_tensor(" in text
    assert "library_addmm(c, a, b, alpha=1, beta=1, out=buf1)" in text
    assert "buf2 = library_convolution(x, w, stride=(1, 1)" in text
    assert "extern_kernels._mm_plus_mm(" in text
    assert with_library("extern = 1\n") == ("extern = 1\n", ())


def test_what_follows_a_convolution_becomes_a_function() -> None:
    call = "    buf{} = torch.ops.kernelwright.convolution.default(x, w, [1], [0], [1], False, [0], 1, b, '{}', one, None)\n"
    relu, both = "t0 = tl.where(x < 0.0, 0.0, x); t0", "t0 = x + a; t1 = t0 * b; t1"
    module = "def call(args):\n" + "".join(call.format(*one) for one in enumerate(["", relu, both, relu]))
    text, operations = with_library(module)
    assert operations == ("convolution",)
    called = [line.split("1, b, ")[1] for line in text.splitlines() if line.startswith("    buf")]
    assert called == [f"{name}, one, None)" for name in ("None", "_after_0", "_after_1", "_after_0")]
    assert text.count("@triton.jit\ndef _after_") == 2
    assert "def _after_1(x, a, b):\n    t0 = x + a\n    t1 = t0 * b\n    return t1\n" in text
    compile(text, "candidate.py", "exec")


def test_in_a_graph_launches_cost_less() -> None:
    replayed = as_replayed(kernels())
    assert [
        replayed.count(one) for one in ("\nLAUNCH_S = 2e-6\nCALL_S = 0.0\n", "\nLAUNCH_S = ", "\nCALL_S = ")
    ] == [1, 1, 1]


@pytest.mark.parametrize("text", [kernels, rewriting_text])
def test_no_name_of_a_joined_text_is_given_twice(text: Callable[[], str]) -> None:
    """The files become one module, where a later name takes the place of an earlier one."""
    statements = ast.parse(text()).body
    names = [
        name
        for one in statements
        if not isinstance(one, ast.Import | ast.ImportFrom)
        for name in bound_names(one)
    ]
    assert sorted({name for name in names if names.count(name) > 1}) == []


def test_the_text_of_the_kernels_needs_nothing_of_this_project() -> None:
    tree = ast.parse(kernels())
    imported = {
        name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module] if isinstance(node, ast.ImportFrom) else [one.name for one in node.names])
    }
    ours = {"functools", "itertools", "math", "typing", "torch", "triton"}
    assert ours >= {name.split(".")[0] for name in imported}
    defined = names_of(tree)
    assert {"library_mm", "library_addmm", "library_bmm", "library_baddbmm", "library_convolution"} <= set(
        defined
    )


def test_a_file_has_what_it_names_and_all_that_this_needs() -> None:
    whole = ast.parse(kernels())
    defined = names_of(whole)
    everything = {found for one in whole.body for found in bound_names(one)}
    assert kernels(everything) == kernels()
    for name in (one for one in defined if one.startswith("library_")):
        text = kernels({name, "not_of_the_library"})
        some = ast.parse(text)
        bound = {found for one in some.body for found in bound_names(one)}
        used = {node.id for node in ast.walk(some) if isinstance(node, ast.Name)}
        assert name in bound and used & everything <= bound
        assert len(text) < 0.5 * len(kernels())


def names_of(tree: ast.Module) -> list[str]:
    """Of functions, classes and other values of a module."""
    named = [node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    targets = [one for node in tree.body if isinstance(node, ast.Assign) for one in node.targets]
    targets += [node.target for node in tree.body if isinstance(node, ast.AnnAssign)]
    return [*named, *(ast.unparse(one) for one in targets)]


@pytest.mark.parametrize("text", [kernels(), rewriting_text()], ids=["kernels", "rewriting"])
def test_no_file_of_a_joined_text_takes_a_name_of_another(text: str) -> None:
    defined = names_of(ast.parse(text))
    assert [name for name in set(defined) if defined.count(name) > 1] == []
