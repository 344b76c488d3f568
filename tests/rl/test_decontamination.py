"""Training data is looked through for the tasks that the model is evaluated on."""

from __future__ import annotations

import re
from textwrap import indent

import pytest

from kernelbench_tasks import catalog
from rl.data.modules import generate, task_of
from rl.decontamination import ContaminatedError, overlaps, refuse_overlaps

EVALUATED = {name: catalog.load(name).source for name in ("rmsnorm", "softmax")}
OTHER = """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return torch.cumsum(torch.sigmoid(x), dim=1) * 2.0


def get_inputs():
    return [torch.randn(8, 8)]


def get_init_inputs():
    return []
"""
# rmsnorm with another text, other locals, sizes and inputs
COPY = '''
"""Nothing to see here."""
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, cols: int, eps: float = 1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(cols))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # other words
        factor = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        return x * factor * self.weight


def get_inputs():
    return [torch.rand(3, 77)]


def get_init_inputs():
    return [77]
'''


def test_a_copy_is_found_whatever_was_changed_around_it() -> None:
    (found,) = overlaps({"a": OTHER, "b": COPY, "c": "no python ("}, EVALUATED)
    assert (found.row, found.task, found.share) == ("b", "rmsnorm", 1.0)


def test_a_data_set_with_evaluation_tasks_is_refused_in_one_sentence() -> None:
    refuse_overlaps({"a": OTHER}, EVALUATED)
    with pytest.raises(
        ContaminatedError,
        match=r"^tasks that .* are in 6 of 7 rows: .*row 0 is 100% like softmax.*, and 1 more; leave",
    ):
        refuse_overlaps({f"row {n}": EVALUATED["softmax"] for n in range(6)} | {"a": OTHER}, EVALUATED)


@pytest.mark.parametrize("name", ["rmsnorm", "clip_power_scale", "transformer_block_training"])
def test_other_names_for_what_a_module_keeps_hide_nothing(name: str) -> None:
    source = catalog.load(name).source
    kept = set(re.findall(r"self\.(\w+)[^=\n(]*=[^=]", source))
    for number, one in enumerate(sorted(kept)):
        source = re.sub(rf"\b{one}\b", f"other_{number}", source)
    (found,) = overlaps({"mine": source}, {name: catalog.load(name).source})
    assert found.task == name


_ROW = """
{imports}


class Model(nn.Module):
    def __init__(self, cols, eps=1e-6):
        super().__init__()
{init}

    def forward(self, x):
{forward}


def get_inputs():
    return [torch.randn(3, 8)]


def get_init_inputs():
    return []
"""
_IMPORTS = "import torch\nfrom torch import nn\nimport torch.nn.functional as F"
_WEIGHTS = "self.gain = nn.Parameter(torch.ones(cols))\nself.small = eps"


def row(forward: str, imports: str = _IMPORTS, init: str = "pass") -> str:
    return _ROW.format(imports=imports, init=indent(init, " " * 8), forward=indent(forward, " " * 8))


@pytest.mark.parametrize(
    "source",
    [
        row("return F.softmax(x, dim=-1)"),
        row("return x.softmax(-1)"),
        row("return torch.softmax(input=x, axis=-1, dtype=None)"),
        row("return torch.special.softmax(x, -1)"),
        row("return torch.Tensor.softmax(x, -1)"),
        row("return G.softmax(x, -1)", "from torch import nn\nimport torch.nn.functional as G"),
        row("return s(x, -1)", "from torch import nn, softmax as s"),
        row("return f.softmax(x, -1)", "from torch import nn\nfrom torch.nn import functional as f"),
        row("import torch as t\nreturn t.softmax(x, -1)", "from torch import nn"),
        row("return nn.Softmax(-1)(x)"),
        row("return self.act(x)", init="self.act = nn.Softmax(dim=-1)"),
        row("y: torch.Tensor = F.softmax(x, dim=-1)\nreturn y"),
        row("logits = F.softmax(logits, dim=-1)\nreturn logits").replace("self, x", "self, logits"),
    ],
)
def test_another_spelling_of_softmax_is_softmax(source: str) -> None:
    compile(source, "row", "exec")
    (found,) = overlaps({"mine": source}, EVALUATED)
    assert (found.task, found.share) == ("softmax", 1.0)


@pytest.mark.parametrize(
    "forward",
    [
        "return x / torch.sqrt(torch.mean(x * x, dim=-1, keepdim=True) + self.small) * self.gain",
        "root = torch.square(x).mean(axis=(-1,), keepdims=True).add(self.small).rsqrt()\nreturn x.mul(root).mul(self.gain)",
        "size = (x**2.0).mean(-1, True)\nsize += self.small\nx = x * size.pow(-0.5)\nreturn torch.multiply(x, self.gain)",
    ],
)
def test_operators_functions_and_powers_are_one(forward: str) -> None:
    (found,) = overlaps({"mine": row(forward, init=_WEIGHTS)}, EVALUATED)
    assert (found.task, found.share) == ("rmsnorm", 1.0)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("return x.matmul(x.neg())", "return x @ -x"),
        ("return torch.sub(x, torch.exp(x))", "return x - x.exp()"),
        ("return x.div(2).relu_()", "return F.relu(torch.true_divide(x, 2), inplace=True)"),
        ("return torch.max(x, -1, True).values", "return x.max(dim=-1, keepdim=True).values"),
        (
            "return F.gelu(x).sum(-1)",
            'return torch.sum(F.gelu(x, approximate="none"), dim=-1, keepdim=False)',
        ),
        ("return F.silu(x) * F.elu(x, 0.5)", "return nn.SiLU()(x) * nn.ELU(alpha=0.5)(x)"),
        ("x = x + 1\nx *= 2\nreturn x", "y: torch.Tensor = 1\ny = x + 1\nreturn y * 2"),
        ("return torch.tanh(x) + F.leaky_relu(x, 0.2)", "return nn.Tanh()(x) + nn.LeakyReLU(0.2)(x)"),
    ],
)
def test_two_spellings_are_one(one: str, other: str) -> None:
    (found,) = overlaps({"one": row(one)}, {"other": row(other)})
    assert found.share == 1.0


@pytest.mark.parametrize(
    "source",
    [
        row("return F.log_softmax(x, dim=-1)"),
        row("return x.cumsum(-1)"),
        row("return F.softmax(x * 0.5, dim=-1)"),
        row("return self.act(x)", init="self.act = nn.Softmin(dim=-1)"),
        row(
            "c = x - x.mean(-1, keepdim=True)\nreturn c * torch.rsqrt(c.var(-1) + self.small) * self.gain",
            init=_WEIGHTS,
        ),
        # what `s` is here is an argument's business
        row("return s(x, -1)", "from torch import nn, softmax as s").replace("self, x", "self, x, s"),
    ],
)
def test_what_only_looks_like_an_evaluation_task_is_let_in(source: str) -> None:
    assert not overlaps({"mine": source}, EVALUATED)


def test_a_module_that_is_not_only_called_stays_what_it_is() -> None:
    one, other = (
        row("return torch.vmap(self.act)(x)", init=f"self.act = {made}")
        for made in ("nn.Softmax(dim=-1)", "nn.Sigmoid()")
    )
    # As they are written they are much alike; in one spelling both would be `vmap` of nothing.
    (found,) = overlaps({"one": one}, {"other": other}, same=0.1)
    assert found.share < 0.9


def test_names_of_arguments_say_nothing() -> None:
    forward = "return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.small) * self.gain"
    (found,) = overlaps({"mine": row(forward, init=_WEIGHTS).replace("cols", "width")}, EVALUATED)
    assert (found.task, found.share) == ("rmsnorm", 1.0)


def test_an_argument_of_one_method_is_none_of_another() -> None:
    one = row("return self.act(x)", init="self.act = nn.ELU(cols)")
    assert not overlaps({"one": one}, {"other": row("return F.elu(x, x)")})


def test_a_name_that_is_bound_anew_is_not_what_was_imported() -> None:
    helper = "\n\n\ndef apply(s, x):\n    return s(x, -1)\n"
    one, other = (
        row("return apply(torch.cumsum, x)", imports) + helper
        for imports in (
            "import torch\nfrom torch import nn, softmax as s",
            "import torch\nfrom torch import nn",
        )
    )
    (found,) = overlaps({"one": one}, {"other": other})
    assert found.share == 1.0


def test_tasks_of_the_catalogue_are_told_apart_in_one_spelling() -> None:
    """Pairs that are alike as they are written: one formula under two names, and four that differ in one operation."""
    sources = {
        task.name: task.source for task in map(catalog.load, (one.name for one in catalog.list_tasks()))
    }
    alike = {
        frozenset((found.row, found.task))
        for name, source in sources.items()
        for found in overlaps(
            {other: text for other, text in sources.items() if other > name}, {name: source}
        )
    }
    assert alike == {
        frozenset(pair)
        for pair in (
            ("gated_linear_recurrence", "gated_recurrence_backward"),
            ("running_logsumexp", "softmax"),
            ("causal_attention_backward", "cross_attention_tall"),
            ("segmented_cumsum", "segmented_logsumexp_scan"),
            ("linear_gelu_scale", "skinny_swiglu"),
        )
    }


def test_generated_modules_are_let_in() -> None:
    rows = {str(index): task_of(generate(0, index)).source for index in range(100)}
    assert not overlaps(rows, EVALUATED)


@pytest.mark.parametrize(
    "line", ["x = torch.relu(x)\n" * 1500 + "return x", "return x / x ** 1e999", "return " + "-" * 3000 + "x"]
)
def test_a_row_that_is_too_deep_or_too_large_is_compared_as_it_is_written(line: str) -> None:
    odd = row(line)
    (found,) = overlaps({"odd": odd}, {"odd": odd, **EVALUATED})
    assert found.share == 1.0
