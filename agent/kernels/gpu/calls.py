"""What generated code calls in place of torch: our kernel where it applies and is expected to be faster, else torch's.

The functions take the arguments that Inductor gives to `extern_kernels`, or those of the operations of `agent.kernels.rewriting`.
"""

import math

import torch

from agent.kernels.gpu.attention import attention, attention_applies, weighed
from agent.kernels.gpu.bags import sum_bags
from agent.kernels.gpu.choice import kernel_for
from agent.kernels.gpu.contractions import contracted
from agent.kernels.gpu.convolutions import After
from agent.kernels.gpu.distances import distances
from agent.kernels.gpu.gathered import multiply_gathered
from agent.kernels.gpu.hopper import on_hopper
from agent.kernels.gpu.launching import repeated
from agent.kernels.gpu.lists import sums_of_lists
from agent.kernels.gpu.parts import TILE
from agent.kernels.gpu.products import (
    few,
    four_of,
    memory_rate,
    product,
    product_pays,
    unpacked,
    with_launches,
)
from agent.kernels.gpu.ranks import MOST_COLS, ranked, ranks_apply, top
from agent.kernels.gpu.recurrent import layers_at_once, recurrent_pays, recurrent_steps
from agent.kernels.gpu.rows import softmax, softmax_applies
from agent.kernels.gpu.scans import running_logsumexp, scan
from agent.kernels.gpu.scatters import count_applies, count_values, scatter, scatter_applies
from agent.kernels.gpu.streamed import Computed, streamed_attention, streaming_applies, streaming_pays
from agent.kernels.gpu.thin import MOST_THIN, thin_pays, thin_products
from agent.kernels.gpu.tiny import tiny_pays, tiny_products
from agent.kernels.gpu.windows import windows, windows_apply

#: Channels of a group, in and out, up to which a convolution is computed in its direct form: with five, cuDNN reaches 2.5 TFLOP/s and
#: this 3.6 (H100). With more, cuDNN gains; not measured.
MOST_OF_GROUP = 5
#: The square of the multiplications, (m k) (k n) (m n), and the elements of operands and results, that take cuBLAS as long as a
#: product's four launches where it is slowest (H200).
SHORT_SUMS, SHORT_ELEMENTS = (with_launches(0, 4) * 20e12 / 2) ** 2, with_launches(0, 4) * 1.5e12 / 4


def library_mm(a, b, *, out):
    if not _is_long(a, b, out) or _is_rounded() or _product(a, b, out) is None:
        return torch.mm(a, b, out=out)
    return out


def library_addmm(bias, a, b, *, alpha=1, beta=1, out):
    if not _is_long(a, b, out) or _is_rounded() or _product(a, b, out, bias, alpha, beta) is None:
        return torch.addmm(bias, a, b, alpha=alpha, beta=beta, out=out)
    return out


@repeated
def _product(a, b, out, bias=None, alpha=1.0, beta=1.0):
    """out = alpha * a @ b + beta * bias by our kernels, or None where they do not apply or are not expected to be faster."""
    if not _multiplies(a, b, out, *([] if bias is None else [bias])):
        return None
    x, y, z = (one if one.dim() == 3 else one.unsqueeze(0) for one in (a, b, out))
    if not product_pays(x, y):
        return None
    product(x, y, z, bias if beta else None, float(alpha), float(beta))
    return out


def library_packed(x, sources, rows, unpack, parts):
    """x (m, k) @ w^T for the w (rows, k) that ``unpack`` computes from up to four tensors, ``parts`` neighbors at a time."""
    sources = four_of(sources)
    out = None if _is_rounded() else _packed_product(x, sources, rows, unpack, parts)
    if out is None:
        w = unpacked(sources, unpack, parts, x.new_empty((rows, x.shape[1])))
        out = library_mm(x, w.t(), out=x.new_empty((x.shape[0], rows)))
    return out


@repeated
def _packed_product(x, sources, rows, unpack, parts):
    """The same by the kernel for few rows of x, or None."""
    (m, ks) = x.shape
    if not _multiplies(x) or not 0 < m <= TILE < rows or ks < 64:
        return None
    return few(x, sources, x.new_empty((m, rows)), None, 1.0, 0.0, unpack, parts)


def library_bmm(a, b, *, out):
    if tiny_pays(a, b):
        return tiny_products(a, b, out)
    if a.shape[1] <= MOST_THIN and not _is_rounded() and _multiplies(a, b, out) and thin_pays(a, b, out):
        return thin_products(a, b, out)
    if not _is_long(a, b, out) or _is_rounded() or _product(a, b, out) is None:
        return torch.bmm(a, b, out=out)
    return out


def library_baddbmm(bias, a, b, *, alpha=1, beta=1, out):
    if not _is_long(a, b, out) or _is_rounded() or _product(a, b, out, bias, alpha, beta) is None:
        return torch.baddbmm(bias, a, b, alpha=alpha, beta=beta, out=out)
    return out


def library_convolution(
    x,
    weight,
    stride,
    padding,
    dilation,
    transposed,
    output_padding,
    groups,
    bias=None,
    after=None,
    one=None,
    two=None,
):
    """The convolution; contiguous where x is, whatever layout cuDNN would choose.

    Args:
        after, one, two: pointwise operations that follow, see `After`; with them the result is contiguous.
    """
    # At 2 TFLOP/s, cuDNN's slowest here: shorter than our launches. A closer look would cost more than some.
    is_short = (
        after is None and groups == 1 and x.numel() * weight.numel() < with_launches(0, 4) * 1e12 * x.shape[1]
    )
    if not is_short:
        parts = 1 if torch.backends.cudnn.allow_tf32 else 2
        form = stride, padding, dilation, transposed, output_padding, groups
        out = _convolution(x, weight, bias, form, parts, after, one, two)
        if out is not None:
            return out
    x = x if after is None else x.contiguous()
    out = torch.convolution(x, weight, bias, stride, padding, dilation, transposed, output_padding, groups)
    out = out.contiguous() if x.is_contiguous() else out
    return out if after is None else _after(after, one, two, out.shape[1]).apply(out)


def _after(function, one, two, outs):
    """The operations of which operands have one value a channel or one an element."""
    operands = [None if each is None else each.contiguous() for each in (one, two)]
    return After(
        function, *(each.view(-1) if each is not None and each.numel() == outs else each for each in operands)
    )


@repeated
def _convolution(x, weight, bias, form, parts, after, one, two):
    """The same by our kernels, or None where they do not apply or are not expected to be faster.

    Args:
        form: stride, padding, dilation, transposed, output_padding, groups.
        parts: 2 for float32 accuracy, 1 for that of TF32.
    """
    stride, padding, dilation, transposed, output_padding, groups = form
    tensors = [x, weight, *([] if bias is None else [bias])]
    if x.dim() < 3 or not all(each.is_cuda and each.dtype == torch.float32 for each in tensors):
        return None
    outs = weight.shape[1] * groups if transposed else weight.shape[0]
    out_sizes = _convolved(x, weight, stride, padding, dilation, transposed, output_padding)
    if groups > 1:
        fits = weight.shape[1] == 1 or max(weight.shape[1], outs // groups) <= MOST_OF_GROUP
        is_plain = not transposed and bias is None and after is None and weight.is_contiguous()
        if fits and is_plain and min(out_sizes) > 0 and windows_apply(x, weight.shape[2:]) and _is_large(x):
            out = x.new_empty((x.shape[0], outs, *out_sizes))
            return windows(x, out, "convolution", weight.shape[2:], stride, padding, dilation, weight)
        return None
    x = x if after is None else x.contiguous()
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim(), torch.contiguous_format)
    order = torch.contiguous_format if x.is_contiguous() else last
    if not x.is_contiguous(memory_format=order):
        return None
    kernel = kernel_for(x, weight, out_sizes, form, parts, 0.0)
    if kernel is None:
        return None
    after = _after(after, one, two, outs)
    out = torch.empty((x.shape[0], outs, *out_sizes), dtype=x.dtype, device=x.device, memory_format=order)
    return kernel(x, weight, bias, form, out, parts, after)


def library_convolutions(inputs, which, weights, biases, forms, after):
    """Convolutions side by side along channels, with the same pointwise operations behind each; contiguous.

    Args:
        which: the place among the inputs of what each takes. forms: of each one stride, padding and dilation.
    """
    axes, first = inputs[0].dim() - 2, 0
    forms = [forms[place : place + axes] for place in range(0, len(forms), axes)]
    sizes = _convolved(inputs[which[0]], weights[0], *forms[:3], False, [])
    out = inputs[0].new_empty((inputs[0].shape[0], sum(one.shape[0] for one in weights), *sizes))
    parts = 1 if torch.backends.cudnn.allow_tf32 else 2
    for place, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        x, form = inputs[which[place]], (*forms[3 * place : 3 * place + 3], False, [0] * axes, 1)
        part = out.narrow(1, first, weight.shape[0])
        first += weight.shape[0]
        if _convolution_beside(x, weight, bias, form, part, parts, after) is None:
            made = torch.convolution(x, weight, bias, *form).contiguous()
            part.copy_(made if after is None else After(after).apply(made))
    return out


@repeated
def _convolution_beside(x, weight, bias, form, out, parts, after):
    """One of these to its part of the output, or None where our kernels do not apply or are not expected to be faster."""
    tensors = [x, weight, *([] if bias is None else [bias])]
    if not all(each.is_cuda and each.dtype == torch.float32 for each in tensors) or not x.is_contiguous():
        return None
    # By cuDNN it would be read once more and written to its place.
    kernel = kernel_for(x, weight, out.shape[2:], form, parts, 8 * out.numel() / memory_rate(x.device))
    return None if kernel is None else kernel(x, weight, bias, form, out, parts, After(after))


def library_mean_pool(x, taps, stride, padding, inside, divisor):
    if windows_apply(x, taps) and _is_large(x):
        kind = "mean_inside" if inside else "mean"
        out = x.new_empty((*x.shape[:2], *_pooled(x, taps, stride, padding, [1] * len(taps))))
        return windows(x, out, kind, taps, stride, padding, [1] * len(taps), None, divisor or math.prod(taps))
    more = {"divisor_override": divisor} if divisor else {}
    pools = torch.nn.functional.avg_pool1d, torch.nn.functional.avg_pool2d, torch.nn.functional.avg_pool3d
    pool = pools[len(taps) - 1]
    return pool(x, taps, stride, padding, count_include_pad=not inside, **more)


def library_max_pool(x, taps, stride, padding, dilation):
    if windows_apply(x, taps) and _is_large(x):
        out = x.new_empty((*x.shape[:2], *_pooled(x, taps, stride, padding, dilation)))
        return windows(x, out, "max", taps, stride, padding, dilation)
    pools = torch.nn.functional.max_pool1d, torch.nn.functional.max_pool2d, torch.nn.functional.max_pool3d
    return pools[len(taps) - 1](x, taps, stride, padding, dilation)


def library_softmax(x, log):
    if softmax_applies(x) and _is_large(x):
        return softmax(x, torch.empty_like(x), log)
    return (torch.log_softmax if log else torch.softmax)(x, -1)


def library_running_logsumexp(x):
    if x.is_cuda and x.dtype == torch.float32 and x.is_contiguous() and _is_large(x):
        return running_logsumexp(x, torch.empty_like(x))
    return torch.logcumsumexp(x, -1)


def library_scan(x, y, dim, joins, first):
    x, y = x.contiguous(), None if y is None else y.contiguous()
    return scan(x, y, dim, joins, first, torch.empty_like(x)) if x.numel() else x


def library_bags(table, ids, offsets, weight, last, wraps):
    bags, count = offsets.shape[0] - int(last), ids.shape[0]
    # A bag is the work of one program; few large ones would leave the others idle.
    if table.numel() and bags > 0 and table.stride(1) == 1 and count < min(1 << 31, 1024 * bags):
        weight = None if weight is None else weight.contiguous()
        out = table.new_empty((bags, table.shape[1]))
        return sum_bags(table, ids.contiguous(), offsets.contiguous(), weight, last, wraps, out)
    ids = torch.where(ids < 0, ids + table.shape[0], ids) if wraps else ids
    offsets = offsets.to(ids.dtype)
    return torch.nn.functional.embedding_bag(
        ids, table, offsets, mode="sum", per_sample_weights=weight, include_last_offset=last
    )


def library_gathered(weights, index, x):
    out = x.new_empty((x.shape[0], weights.shape[1]))
    return (
        multiply_gathered(weights, index.contiguous(), x.contiguous(), out)
        if out.numel() and x.numel()
        else out.zero_()
    )


def library_contraction(equation, a, b, factor):
    """The einsum of small matrices, see `contracted`; contiguous."""
    given, out = [a, b] if factor is None else [a, b, factor], None
    if _multiplies(*given) and all(one.numel() for one in given):
        out = contracted(equation, a, b, factor)
    return torch.einsum(equation, *given).contiguous() if out is None else out


def library_sums(tensors, norm):
    """A sum for each tensor, all contiguous and float32, or a norm; (how many,)."""
    out = sums_of_lists(tensors, norm) if tensors[0].is_cuda else None
    if out is None:
        out = torch.stack([one.norm() if norm else one.sum() for one in tensors])
    return out


def library_attention(q, k, v, excluded, scale, causal, safe=False, element=None):
    """softmax(scale * q k^T) v without the keys that are excluded; heads of a place lie side by side, as torch's have them.

    With ``element``, that function of each score and of what is in the place of ``excluded`` takes the softmax's place. Tensors of 16 bits go
    to torch's fused kernels, of which it picks cuDNN's on Hopper.

    Args:
        scale: the head's size to the power of -1/2 if not given.
        safe: zeros for queries without keys, as torch's call has them.
    """
    scale = q.shape[3] ** -0.5 if scale is None else scale
    out = (
        None
        if _is_rounded() or q.dtype != torch.float32
        else _attention(q, k, v, excluded, scale, causal, safe, element)
    )
    if out is not None:
        return out
    if causal and excluded is not None and element is None:
        excluded, causal = excluded | excluded.new_ones((q.shape[2], k.shape[2])).triu(1), False
    if element is not None:
        out = weighed((q @ k.transpose(2, 3)).mul_(scale).contiguous(), excluded, element) @ v
    elif excluded is None or safe or q.dtype != torch.float32:
        attend = torch.nn.functional.scaled_dot_product_attention
        counts = (
            None
            if excluded is None
            else excluded.logical_not().expand(*[-1] * (excluded.dim() - 2), q.shape[2], k.shape[2])
        )
        out = attend(q, k, v, counts, is_causal=causal, scale=scale)
        if excluded is not None and not safe:
            out.masked_fill_(counts.any(-1, keepdim=True).logical_not(), math.nan)  # a softmax of nothing
    else:
        scores = (q @ k.transpose(2, 3)).mul_(scale).masked_fill_(excluded, -math.inf)
        out = torch.softmax(scores, -1) @ v
    return out.transpose(1, 2).contiguous().transpose(1, 2)


@repeated
def _attention(q, k, v, excluded, scale, causal, safe, element):
    """The same by our kernel, or None where it does not apply or is not expected to be faster."""
    if not attention_applies(q, k, v) or not on_hopper(q.device):
        return None
    dims, heads = q.shape[3], q.shape[0] * q.shape[1]
    scores = heads * q.shape[2] * (-(-k.shape[2] // 64) * 64)
    # Fitted to what `benchmarks.attention` timed on an H200: operations a second, 64 keys at a time on both sides, and 26 ns for each tile of
    # small heads. What is written out makes passes over all scores.
    theirs, ours = (33e12, 120e12) if dims <= 64 else (45e12, 135e12) if dims <= 128 else (45e12, 55e12)
    theirs_s = 4 * scores * dims / theirs + (0 if excluded is None or safe else 20 * scores / 2.4e12)
    ours_s = 4 * scores * dims / ours + 24 * k.numel() / 3.5e12
    ours_s += 26e-9 * heads * -(-q.shape[2] // 64) if dims <= 64 else 12 * q.numel() / 3.5e12
    if with_launches(ours_s, 5) >= 0.95 * theirs_s:
        return None
    out = q.new_empty((q.shape[0], q.shape[2], q.shape[1], v.shape[3])).transpose(1, 2)
    return attention(q, k, v, excluded, scale, causal, safe, out, element)


def library_decoding(q, keys, values, excluded, bias, scale, safe, change, key=None, value=None, sizes=()):
    """softmax(change(scale * q k^T, bias)) v of few queries, without the keys that are excluded; keys and values may lie in several tensors.

    Args:
        scale: the head's size to the power of -1/2 if not given.
        safe: torch's call: zeros for queries without keys, and heads that share keys; the change adds the bias.
        key, value: compute keys and values of these sizes from the tensors that are given for them, see `Computed`; or None.
    """
    if key is not None:
        sizes = torch.Size(sizes)
        keys, values = [Computed(keys, key, sizes)], [Computed(values, value, sizes)]
    out = None if _is_rounded() else _decoding(q, keys, values, excluded, bias, scale, safe, change)
    if out is not None:
        return out
    if key is not None:
        keys, values = [keys[0].tensor()], [values[0].tensor()]
    k, v = (pieces[0] if len(pieces) == 1 else torch.cat(pieces, 2) for pieces in (keys, values))
    if safe and q.shape[1] != k.shape[1]:  # torch's call repeats keys in memory
        scale = q.shape[3] ** -0.5 if scale is None else scale
        rows = q.reshape(*k.shape[:2], -1, q.shape[3])
        scores = (rows @ k.transpose(2, 3)).mul_(scale).view(*q.shape[:3], k.shape[2])
        if excluded is not None:
            scores.masked_fill_(excluded, -math.inf)
        weights = torch.ops.aten._safe_softmax(scores if bias is None else scores + bias, -1)
        return (weights.view(*rows.shape[:3], k.shape[2]) @ v).view(q.shape).contiguous()
    if safe:
        mask = bias if excluded is None else excluded.logical_not()
        attend = torch.nn.functional.scaled_dot_product_attention
        return attend(q, k, v, mask, scale=scale).contiguous()
    if change is None:
        return library_attention(q, k, v, excluded, scale, False).contiguous()
    scores = weighed((q @ k.transpose(2, 3)).mul_(scale).contiguous(), bias, change)
    if excluded is not None:
        scores.masked_fill_(excluded, -math.inf)
    return (torch.softmax(scores, -1) @ v).contiguous()


@repeated
def _decoding(q, keys, values, excluded, bias, scale, safe, change):
    """The same by our kernel, or None where it does not apply or is not expected to be faster."""
    if not streaming_applies(q, keys, values) or not streaming_pays(q, keys) or not on_hopper(q.device):
        return None
    scale = q.shape[3] ** -0.5 if scale is None else scale
    return streamed_attention(q, keys, values, excluded, bias, scale, safe, change, q.new_empty(q.shape))


def library_distances(x, z, euclid):
    """Distances of all pairs of rows; differences, not products of matrices."""
    fits = x.shape[-2] < 1 << 22 and (x.dim() == 2 or x.shape[0] < 1 << 16)
    fits = fits and all(one.stride(-1) * one.shape[-1] < 1 << 31 for one in (x, z))
    if x.is_cuda and x.dtype == z.dtype == torch.float32 and min(x.numel(), z.numel()) > 0 and fits:
        out = distances(x if x.dim() == 3 else x[None], z if z.dim() == 3 else z[None], euclid)
        return out if x.dim() == 3 else out[0]
    mode = "donot_use_mm_for_euclid_dist"
    return torch.cdist(x, z, 2.0 if euclid else 1.0, mode).contiguous()


def library_recurrent(x, states, weights, has_biases, layers, bidirectional, batch_first, kind):
    """torch.lstm, gru, rnn_tanh or rnn_relu outside training.

    Returns:
        Outputs, last hidden states and an LSTM's last cells, else an empty tensor.
    """
    if recurrent_pays(x, states, weights, kind, layers, 1 + bidirectional, batch_first):
        return _recurrent(x, states, weights, has_biases, layers, bidirectional, batch_first, kind)
    layer = torch.lstm if kind == "lstm" else torch.gru if kind == "gru" else getattr(torch, f"rnn_{kind}")
    state = states if kind == "lstm" else states[0]
    out = layer(x, state, weights, has_biases, layers, 0.0, False, bidirectional, batch_first)
    return out if kind == "lstm" else (*out, x.new_empty(0))


def _recurrent(x, states, weights, has_biases, layers, bidirectional, batch_first, kind):
    """The same by our kernel: as many layers together as the device has room for, or one where each has two directions."""
    x = x.transpose(0, 1) if batch_first else x
    count, (steps, rows, _) = 4 if has_biases else 2, x.shape
    cells = [weights[at : at + count] for at in range(0, len(weights), count)]
    hidden, *state = (one.contiguous() for one in states)
    ends = []
    together = 2 if bidirectional else layers_at_once(x.device, kind, layers, 1, rows, hidden.shape[-1])
    for first in range(0, len(cells), together):
        some = slice(first, first + together)
        here = cells[some]
        # Cells that take the layer's input, all steps of which are one product; the others take another cell's states.
        heads, later = (here, []) if bidirectional else (here[:1], here[1:])
        flat, given = x.reshape(steps * rows, -1), x.new_empty((len(heads), steps, rows, here[0][0].shape[0]))
        for (w, _, *biases), out in zip(heads, given.view(len(heads), steps * rows, -1), strict=True):
            if biases:
                library_addmm(biases[0], flat, w.t(), out=out)
            else:
                library_mm(flat, w.t(), out=out)
        into, into_bias, over, over_bias = (
            torch.stack([one[at] for one in group]) if group and at < count else None
            for group, at in ((later, 0), (later, 2), (here, 1), (here, 3))
        )
        end = [one[some].clone() for one in state]
        cell = end[0] if end else None
        x, last = recurrent_steps(given, into, into_bias, over, over_bias, hidden[some], cell, kind)
        ends.append([last, *end])
    out = x.transpose(0, 1) if batch_first else x
    last, *end = (torch.cat(of) for of in zip(*ends, strict=True))
    return out, last, end[0] if end else x.new_empty(0)


def library_ranked(x, rank, nan_wins):
    """The element of a rank along the last axis: the median, which is NaN where a NaN is, or the k-th value."""
    if ranks_apply(x) and x.shape[-1] <= MOST_COLS and _is_slow_to_sort(x):
        return ranked(x, rank, nan_wins)
    return (x.median(-1) if nan_wins else x.kthvalue(rank + 1, -1)).values


def library_top(x, taken, largest, stable):
    """The largest or smallest elements along the last axis and where they are; stable: the first of equals first."""
    if ranks_apply(x) and _is_slow_to_sort(x):
        return top(x, taken, largest)
    if stable:
        values, places = x.sort(dim=-1, descending=largest, stable=True)
        return values[..., :taken].contiguous(), places[..., :taken].contiguous()
    return tuple(x.topk(taken, -1, largest))


def library_scatter(out, index, x, kind):
    """A copy of out, with which x is combined at index along the first axis: "sum", "max" or "min"."""
    if scatter_applies(out, index, x):
        return scatter(out.clone(), index, x, kind)
    if kind == "sum":
        return out.index_add(0, index, x).contiguous()
    each = index.view(-1, *[1] * (x.dim() - 1)).expand_as(x)
    return out.scatter_reduce(0, each, x, "a" + kind).contiguous()


def library_count(out, index):
    """A copy of out (..., bins) plus how often each value occurs in a row of index."""
    if count_applies(out, index):
        return count_values(out.clone(), index)
    return out.scatter_add(-1, index.long(), torch.ones_like(index, dtype=out.dtype)).contiguous()


def _is_slow_to_sort(x):
    """Whether torch's operations, at 0.3 TB/s or less, take longer than a launch with what is around it."""
    return 4 * x.numel() / 0.3e12 > with_launches(0, 1)


def _is_large(x):
    """Whether one pass over x takes longer than a launch with what is around it."""
    return 4 * x.numel() / 1.2e12 > with_launches(0, 1)


def _pooled(x, taps, stride, padding, dilation):
    axes = zip(x.shape[2:], taps, stride, padding, dilation, strict=True)
    return [(size + 2 * pad - gap * (tap - 1) - 1) // step + 1 for size, tap, step, pad, gap in axes]


def _convolved(x, weight, stride, padding, dilation, transposed, output_padding):
    taps = weight.shape[2:]
    if not transposed:
        return _pooled(x, taps, stride, padding, dilation)
    axes = zip(x.shape[2:], taps, stride, padding, dilation, output_padding, strict=True)
    return [
        (size - 1) * step - 2 * pad + gap * (tap - 1) + 1 + more for size, tap, step, pad, gap, more in axes
    ]


def _is_long(a, b, out):
    """Whether a product takes cuBLAS longer than ours takes to launch."""
    x, y, z = a.numel(), b.numel(), out.numel()
    return x * y * z > SHORT_SUMS or x + y + z > SHORT_ELEMENTS


def _multiplies(*tensors):
    return all(one.is_cuda and one.dtype == torch.float32 for one in tensors) and on_hopper(tensors[0].device)


def _is_rounded():
    """Whether torch may multiply in TF32, which is faster than our products."""
    return torch.backends.cuda.matmul.allow_tf32
