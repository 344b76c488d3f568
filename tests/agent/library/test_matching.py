"""A known operation is recognized however it is written, and a near miss is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.library.catalog import EXEMPLARS
from agent.library.find import Match, find_matches
from agent.library.match.canonical import NotRowwise
from agent.library.match.graph import Traced
from kernelbench_tasks import catalog
from tests.agent.library.tracing import module_source, trace_all

LINEAR_NORM = "torch.relu(F.layer_norm(x, (self.cols,), self.weight, self.bias, 1e-5)) + r"
MEAN, MEAN_SQUARE = "x.mean(-1, keepdim=True)", "x.pow(2).mean(-1, keepdim=True)"

# forward, other arguments of module_source, the kernel that must be found
KNOWN: dict[str, tuple[str, dict[str, object], str]] = {
    "functional": (LINEAR_NORM, {}, "layernorm_relu_add"),
    "module": (
        "F.relu(self.norm(x)) + r",
        {"setup": "self.norm = nn.LayerNorm(cols, eps=1e-3)"},
        "layernorm_relu_add",
    ),
    "nested": (
        "r + self.blocks[1][0](x).relu()",
        {"setup": "self.blocks = nn.ModuleList([nn.Identity(), nn.Sequential(nn.LayerNorm(cols))])"},
        "layernorm_relu_add",
    ),
    "swapped": (
        "F.relu(self.norm(r)) + x",
        {"setup": "self.norm = nn.LayerNorm(cols)"},
        "layernorm_relu_add",
    ),
    "own_residual": (
        "F.relu(self.norm(x)) + x",
        {"setup": "self.norm = nn.LayerNorm(cols)"},
        "layernorm_relu_add",
    ),
    "by_hand": (
        (
            f"torch.clamp((x - {MEAN}) / torch.sqrt(x.var(-1, keepdim=True, unbiased=False) + 1e-5) * self.weight"
            " + self.bias, min=0) + r"
        ),
        {},
        "layernorm_relu_add",
    ),
    "by_hand_squares": (
        (
            f"torch.maximum(self.bias + self.weight * ((x - {MEAN}) * ({MEAN_SQUARE} - {MEAN} ** 2 + 1e-5).rsqrt()),"
            " torch.tensor(0.0)) + r"
        ),
        {},
        "layernorm_relu_add",
    ),
    "by_hand_sums": (
        (
            "(lambda d: torch.relu(d / ((d * d).sum(-1, keepdim=True) / self.cols + 1e-5) ** 0.5 * self.weight"
            " + self.bias) + r)(x - x.sum(-1).unsqueeze(-1) / self.cols)"
        ),
        {},
        "layernorm_relu_add",
    ),
    "flattened": (
        "(F.relu(self.norm(x.reshape(-1, self.cols))) + r.reshape(-1, self.cols)).view(x.shape)",
        {"setup": "self.norm = nn.LayerNorm(cols)", "shape": "3, rows, cols"},
        "layernorm_relu_add",
    ),
    "dropout_at_rest": (
        "self.drop(F.relu(self.norm(x))) + r",
        {"setup": "self.norm, self.drop = nn.LayerNorm(cols), nn.Dropout(0.1)"},
        "layernorm_relu_add",
    ),
    "rms_llama": (
        f"self.weight * (x * torch.rsqrt({MEAN_SQUARE} + 1e-6))",
        {"arguments": "x", "inputs": 1},
        "rmsnorm",
    ),
    "rms_norm_of_squares": (
        "x / torch.sqrt((x * x).mean(dim=1, keepdim=True) + 1e-6) * self.weight",
        {"arguments": "x", "inputs": 1},
        "rmsnorm",
    ),
    "rms_extra_argument": (
        f"self.weight * (x * torch.rsqrt({MEAN_SQUARE} + 1e-6))",
        {"arguments": "x, scale=None", "inputs": 1},
        "rmsnorm",
    ),
    "add_rms": (
        "F.rms_norm(r + x, (self.cols,), self.weight, 1e-6)",
        {},
        "residual_add_rmsnorm",
    ),
    "softmax_by_hand": (
        "(lambda e: e / e.sum(-1, keepdim=True))(torch.exp(x - x.amax(-1, keepdim=True)))",
        {"arguments": "x", "inputs": 1},
        "softmax",
    ),
    "softmax_dim_one": ("F.softmax(x, dim=1)", {"arguments": "x", "inputs": 1}, "softmax"),
    "swish_gate": ("r * (x * torch.sigmoid(x))", {}, "swiglu"),
    "swish_gate_by_hand": ("x / (1 + torch.exp(-x)) * r", {}, "swiglu"),
    "gelu_by_hand": (
        "(lambda v: 0.5 * v * (1 + torch.tanh(0.7978845608028654 * (v + 0.044715 * v ** 3))))(x + self.bias)",
        {"arguments": "x", "inputs": 1},
        "bias_gelu",
    ),
    "sum_kept": ("torch.sum(x, dim=-1, keepdim=True)", {"arguments": "x", "inputs": 1}, "row_sum"),
}

NEAR_MISSES: dict[str, tuple[str, dict[str, object]]] = {
    "gelu": ("F.gelu(self.norm(x)) + r", {"setup": "self.norm = nn.LayerNorm(cols)"}),
    "leaky": ("F.leaky_relu(self.norm(x)) + r", {"setup": "self.norm = nn.LayerNorm(cols)"}),
    "relu_after": ("F.relu(self.norm(x) + r)", {"setup": "self.norm = nn.LayerNorm(cols)"}),
    "minus": ("F.relu(self.norm(x)) - r", {"setup": "self.norm = nn.LayerNorm(cols)"}),
    "twice": ("F.relu(self.norm(x)) + 2 * r", {"setup": "self.norm = nn.LayerNorm(cols)"}),
    "no_weight": ("F.relu(F.layer_norm(x, (self.cols,))) + r", {}),
    "unbiased": (
        f"torch.relu((x - {MEAN}) / torch.sqrt(x.var(-1, keepdim=True) + 1e-5) * self.weight + self.bias) + r",
        {},
    ),
    "eps_outside": (
        f"torch.relu((x - {MEAN}) / (x.var(-1, keepdim=True, unbiased=False).sqrt() + 1e-5) * self.weight + self.bias) + r",
        {},
    ),
    "other_dimension": (
        "torch.relu((x - x.mean(0)) / torch.sqrt(x.var(0, unbiased=False) + 1e-5) * self.weight + self.bias) + r",
        {},
    ),
    "two_dimensions": (
        "F.relu(F.layer_norm(x, x.shape[-2:], eps=1e-5) * self.weight + self.bias) + r",
        {"shape": "3, rows, cols"},
    ),
    "other_mean": (
        (
            "torch.relu((x - r.mean(-1, keepdim=True)) / torch.sqrt(x.var(-1, keepdim=True, unbiased=False) + 1e-5)"
            " * self.weight + self.bias) + r"
        ),
        {},
    ),
    "square_row_mean": ("x - x.mean(-1)", {"arguments": "x", "inputs": 1, "shape": "cols, cols"}),
    "transposed": ("(F.relu(self.norm(x)) + r).T", {"setup": "self.norm = nn.LayerNorm(cols)"}),
    "softmax_dim_zero": ("F.softmax(x, dim=0)", {"arguments": "x", "inputs": 1}),
    "log_softmax": ("F.log_softmax(x, dim=-1)", {"arguments": "x", "inputs": 1}),
    "exact_gelu": ("F.gelu(x + self.bias)", {"arguments": "x", "inputs": 1}),
    "two_outputs": ("(x, torch.softmax(x, -1))", {"arguments": "x", "inputs": 1}),
    "half": ("torch.softmax(x.half(), -1).float()", {"arguments": "x", "inputs": 1}),
    "in_place": ("x.add_(r).softmax(-1)", {}),
    "eps_from_size": (
        f"x * torch.rsqrt({MEAN_SQUARE} + 1.0 / self.cols) * self.weight",
        {"arguments": "x", "inputs": 1, "dims": True},
    ),
    "abs": ("torch.sqrt(x * x) * r", {}),
}


_OF_EXEMPLARS = {exemplar.task for exemplar in EXEMPLARS}


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Traced | str]:
    sources = {
        f"known_{name}": module_source(forward, **given) for name, (forward, given, _) in KNOWN.items()
    }  # type: ignore[arg-type]
    sources |= {
        f"miss_{name}": module_source(forward, **given) for name, (forward, given) in NEAR_MISSES.items()
    }  # type: ignore[arg-type]
    sources |= {
        f"task_{task.name}": task.source for task in catalog.list_tasks() if task.name in _OF_EXEMPLARS
    }
    return trace_all(sources, tmp_path_factory.mktemp("traces"))


def matches_of(traced: Traced | str) -> list[Match]:
    assert not isinstance(traced, str), traced
    try:
        return list(find_matches(traced))
    except NotRowwise:
        return []


@pytest.mark.parametrize("name", KNOWN)
def test_a_known_operation_is_recognized(name: str, traces: dict[str, Traced | str]) -> None:
    assert [match.exemplar.name for match in matches_of(traces[f"known_{name}"])] == [KNOWN[name][2]]


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_a_near_miss_is_not(name: str, traces: dict[str, Traced | str]) -> None:
    traced = traces[f"miss_{name}"]
    if isinstance(traced, str):
        assert name in ("two_outputs", "in_place"), traced
        return
    assert matches_of(traced) == []


@pytest.mark.parametrize("exemplar", EXEMPLARS, ids=lambda exemplar: exemplar.name)
def test_a_kernel_is_found_for_its_own_task(exemplar, traces: dict[str, Traced | str]) -> None:  # type: ignore[no-untyped-def]
    assert [match.exemplar for match in matches_of(traces[f"task_{exemplar.task}"])] == [exemplar]
    assert all(exemplar.path(device).exists() for device in exemplar.devices)


@pytest.mark.slow
def test_tasks_outside_the_library_are_not_recognized(tmp_path: Path) -> None:
    unknown = {task.name: task.source for task in catalog.list_tasks() if task.name not in _OF_EXEMPLARS}
    assert "matmul_bias_relu" in unknown
    # A module of several outputs or of lists is not even traced.
    traced = [one for one in trace_all(unknown, tmp_path).values() if not isinstance(one, str)]
    assert len(traced) > 20
    assert [matches_of(one) for one in traced] == [[]] * len(traced)


def test_a_match_says_where_everything_is(traces: dict[str, Traced | str]) -> None:
    (module,) = matches_of(traces["known_module"])
    assert module.tensors["weight"] == ("parameter", "norm.weight")
    assert module.numbers == {"eps": pytest.approx(1e-3)}
    (nested,) = matches_of(traces["known_nested"])
    assert nested.tensors["bias"] == ("parameter", "blocks.1.0.bias")
    (swapped,) = matches_of(traces["known_swapped"])
    assert (swapped.tensors["x"], swapped.tensors["residual"]) == (("input", "1"), ("input", "0"))
    (own,) = matches_of(traces["known_own_residual"])
    assert own.tensors["x"] == own.tensors["residual"] == ("input", "0")
    (extra,) = matches_of(traces["known_rms_extra_argument"])
    assert (extra.arguments, extra.open_ended) == (("x",), True)
    (kept,) = matches_of(traces["known_sum_kept"])
    assert kept.keeps_dim
    (task,) = matches_of(traces["task_row_sum"])
    assert not task.keeps_dim
