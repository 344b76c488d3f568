"""The operations of the library, which the compiler leaves as calls; here only the sizes of their results."""

from __future__ import annotations

from typing import Any

import torch

from agent.kernels.rewriting.nodes import aten

_LIBRARY = torch.library.Library("kernelwright", "DEF")
_CONVOLUTION = "Tensor x, Tensor weight, int[] stride, int[] padding, int[] dilation, bool transposed, int[] output_padding, int groups"
_LIBRARY.define(f"convolution({_CONVOLUTION}, Tensor? bias, str after, Tensor? one, Tensor? two) -> Tensor")
_LIBRARY.define(
    "convolutions(Tensor[] inputs, int[] which, Tensor[] weights, Tensor?[] biases, int[] forms, str after) -> Tensor"
)
_LIBRARY.define(
    "mean_pool(Tensor x, int[] taps, int[] stride, int[] padding, bool inside, int divisor) -> Tensor"
)
_LIBRARY.define("max_pool(Tensor x, int[] taps, int[] stride, int[] padding, int[] dilation) -> Tensor")
_LIBRARY.define("softmax(Tensor x, bool log) -> Tensor")
_LIBRARY.define("running_logsumexp(Tensor x) -> Tensor")
_LIBRARY.define("gathered(Tensor weights, Tensor index, Tensor x) -> Tensor")
_LIBRARY.define("contraction(str equation, Tensor a, Tensor b, Tensor? factor) -> Tensor")
_LIBRARY.define("scan(Tensor x, Tensor? y, int dim, str joined, str first) -> Tensor")
_LIBRARY.define(
    "attention(Tensor q, Tensor k, Tensor v, Tensor? excluded, float? scale, bool causal, bool safe, str element) -> Tensor"
)
_LIBRARY.define(
    "decoding(Tensor q, Tensor[] keys, Tensor[] values, Tensor? excluded, Tensor? bias, float? scale, bool safe, str change, "
    "str key, str value, int[] sizes) -> Tensor"
)
_LIBRARY.define("distances(Tensor x, Tensor z, bool euclid) -> Tensor")
_LIBRARY.define("ranked(Tensor x, int rank, bool nan_wins) -> Tensor")
_LIBRARY.define("scatter(Tensor out, Tensor index, Tensor x, str kind) -> Tensor")
_LIBRARY.define(
    "bags(Tensor table, Tensor ids, Tensor offsets, Tensor? weight, bool last, bool wraps) -> Tensor"
)
_LIBRARY.define("sums(Tensor[] tensors, bool norm) -> Tensor")
_LIBRARY.define(
    "recurrent(Tensor x, Tensor[] states, Tensor[] weights, bool has_biases, int layers, bool bidirectional, bool batch_first, str kind) "
    "-> (Tensor, Tensor, Tensor)"
)
_LIBRARY.define("count(Tensor out, Tensor index) -> Tensor")
_LIBRARY.define("packed(Tensor x, Tensor[] sources, int rows, str element, int parts) -> Tensor")
_LIBRARY.define("top(Tensor x, int taken, bool largest, bool stable) -> (Tensor, Tensor)")


@torch.library.register_fake("kernelwright::convolution", lib=_LIBRARY)
def _convolution(
    x: torch.Tensor,
    weight: torch.Tensor,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    more: Any,
    groups: int,
    bias: torch.Tensor | None,
    after: str,
    one: torch.Tensor | None,
    two: torch.Tensor | None,
) -> torch.Tensor:
    out = aten.convolution(x, weight, None, stride, padding, dilation, transposed, more, groups)
    return x.new_empty(out.shape)


@torch.library.register_fake("kernelwright::convolutions", lib=_LIBRARY)
def _convolutions(
    inputs: list[torch.Tensor],
    which: Any,
    weights: list[torch.Tensor],
    biases: list[torch.Tensor | None],
    forms: Any,
    after: str,
) -> torch.Tensor:
    x, weight, axes = inputs[which[0]], weights[0], inputs[0].dim() - 2
    form = [forms[place : place + axes] for place in range(0, 3 * axes, axes)]
    out = aten.convolution(x, weight, None, *form, False, [0] * axes, 1)
    return x.new_empty((x.shape[0], sum(one.shape[0] for one in weights), *out.shape[2:]))


@torch.library.register_fake("kernelwright::mean_pool", lib=_LIBRARY)
def _mean_pool(
    x: torch.Tensor, taps: Any, stride: Any, padding: Any, inside: bool, divisor: int
) -> torch.Tensor:
    return x.new_empty(pooled(x, taps, stride, padding, [1] * len(taps)))


@torch.library.register_fake("kernelwright::max_pool", lib=_LIBRARY)
def _max_pool(x: torch.Tensor, taps: Any, stride: Any, padding: Any, dilation: Any) -> torch.Tensor:
    return x.new_empty(pooled(x, taps, stride, padding, dilation))


@torch.library.register_fake("kernelwright::softmax", lib=_LIBRARY)
def _softmax(x: torch.Tensor, log: bool) -> torch.Tensor:
    return x.new_empty(x.shape)


@torch.library.register_fake("kernelwright::running_logsumexp", lib=_LIBRARY)
def _running_logsumexp(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(x.shape)


@torch.library.register_fake("kernelwright::scan", lib=_LIBRARY)
def _scan(x: torch.Tensor, y: torch.Tensor | None, dim: int, joined: str, first: str) -> torch.Tensor:
    return x.new_empty(x.shape)


@torch.library.register_fake("kernelwright::gathered", lib=_LIBRARY)
def _gathered(weights: torch.Tensor, index: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return x.new_empty((x.shape[0], weights.shape[1]))


@torch.library.register_fake("kernelwright::contraction", lib=_LIBRARY)
def _contraction(
    equation: str, a: torch.Tensor, b: torch.Tensor, factor: torch.Tensor | None
) -> torch.Tensor:
    given, _, out = equation.partition("->")
    of_a, of_b, *_ = given.split(",")
    sizes = dict(zip(of_a + of_b, (*a.shape, *b.shape), strict=True))
    return a.new_empty([sizes[at] for at in out])


@torch.library.register_fake("kernelwright::attention", lib=_LIBRARY)
def _attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    excluded: torch.Tensor | None,
    scale: float | None,
    causal: bool,
    safe: bool,
    element: str,
) -> torch.Tensor:
    batch, heads, queries, _ = q.shape
    return q.new_empty((batch, queries, heads, v.shape[3])).transpose(1, 2)


@torch.library.register_fake("kernelwright::decoding", lib=_LIBRARY)
def _decoding(
    q: torch.Tensor,
    keys: list[torch.Tensor],
    values: list[torch.Tensor],
    excluded: torch.Tensor | None,
    bias: torch.Tensor | None,
    scale: float | None,
    safe: bool,
    change: str,
    key: str,
    value: str,
    sizes: Any,
) -> torch.Tensor:
    return q.new_empty(q.shape)


@torch.library.register_fake("kernelwright::distances", lib=_LIBRARY)
def _distances(x: torch.Tensor, z: torch.Tensor, euclid: bool) -> torch.Tensor:
    return x.new_empty((*x.shape[:-1], z.shape[-2]))


@torch.library.register_fake("kernelwright::ranked", lib=_LIBRARY)
def _ranked(x: torch.Tensor, rank: int, nan_wins: bool) -> torch.Tensor:
    return x.new_empty(x.shape[:-1])


@torch.library.register_fake("kernelwright::top", lib=_LIBRARY)
def _top(x: torch.Tensor, taken: int, largest: bool, stable: bool) -> tuple[torch.Tensor, torch.Tensor]:
    values = x.new_empty((*x.shape[:-1], taken))
    return values, torch.empty_like(values, dtype=torch.int64)


@torch.library.register_fake("kernelwright::packed", lib=_LIBRARY)
def _packed(
    x: torch.Tensor, sources: list[torch.Tensor], rows: int, element: str, parts: int
) -> torch.Tensor:
    return x.new_empty((x.shape[0], rows))


@torch.library.register_fake("kernelwright::scatter", lib=_LIBRARY)
def _scatter(out: torch.Tensor, index: torch.Tensor, x: torch.Tensor, kind: str) -> torch.Tensor:
    return out.new_empty(out.shape)


@torch.library.register_fake("kernelwright::bags", lib=_LIBRARY)
def _bags(
    table: torch.Tensor,
    ids: torch.Tensor,
    offsets: torch.Tensor,
    weight: torch.Tensor | None,
    last: bool,
    wraps: bool,
) -> torch.Tensor:
    return table.new_empty((offsets.shape[0] - int(last), table.shape[1]))


@torch.library.register_fake("kernelwright::sums", lib=_LIBRARY)
def _sums(tensors: list[torch.Tensor], norm: bool) -> torch.Tensor:
    return tensors[0].new_empty((len(tensors),))


@torch.library.register_fake("kernelwright::recurrent", lib=_LIBRARY)
def _recurrent(
    x: torch.Tensor,
    states: list[torch.Tensor],
    weights: list[torch.Tensor],
    has_biases: bool,
    layers: int,
    bidirectional: bool,
    batch_first: bool,
    kind: str,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    hidden = states[0]
    steps, rows, _ = x.transpose(0, 1).shape if batch_first else x.shape
    out = x.new_empty((steps, rows, hidden.shape[2] * (1 + bidirectional)))
    cells = hidden.new_empty(hidden.shape if kind == "lstm" else (0,))
    return out.transpose(0, 1) if batch_first else out, hidden.new_empty(hidden.shape), cells


@torch.library.register_fake("kernelwright::count", lib=_LIBRARY)
def _count(out: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return out.new_empty(out.shape)


def pooled(x: torch.Tensor, taps: Any, stride: Any, padding: Any, dilation: Any) -> list[Any]:
    """Sizes of what windows give."""
    axes = zip(x.shape[2:], taps, stride, padding, dilation, strict=True)
    return [
        *x.shape[:2],
        *((size + 2 * pad - gap * (tap - 1) - 1) // step + 1 for size, tap, step, pad, gap in axes),
    ]
