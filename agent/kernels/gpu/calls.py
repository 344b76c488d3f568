"""What generated code calls in place of cuBLAS and cuDNN: our kernel where it applies and is expected to be faster, else torch's.

The functions take the arguments that Inductor gives to `extern_kernels`.
"""

import torch

from agent.kernels.gpu.convolutions import convolution, transposed_convolution
from agent.kernels.gpu.products import LAUNCH_S, product, product_pays


def library_mm(a, b, *, out):
    if _multiplies(a, b, out) and product_pays(1, *a.shape, b.shape[1], a.device):
        return product(a[None], b[None], out[None])[0]
    return torch.mm(a, b, out=out)


def library_addmm(bias, a, b, *, alpha=1, beta=1, out):
    if _multiplies(a, b, bias, out) and product_pays(1, a.shape[0], b.shape[1], a.shape[1], a.device):
        return product(a[None], b[None], out[None], bias if beta else None, float(alpha), float(beta))[0]
    return torch.addmm(bias, a, b, alpha=alpha, beta=beta, out=out)


def library_bmm(a, b, *, out):
    if _multiplies(a, b, out) and product_pays(a.shape[0], a.shape[1], b.shape[2], a.shape[2], a.device):
        return product(a, b, out)
    return torch.bmm(a, b, out=out)


def library_baddbmm(bias, a, b, *, alpha=1, beta=1, out):
    if _multiplies(a, b, bias, out) and product_pays(
        a.shape[0], a.shape[1], b.shape[2], a.shape[2], a.device
    ):
        return product(a, b, out, bias if beta else None, float(alpha), float(beta))
    return torch.baddbmm(bias, a, b, alpha=alpha, beta=beta, out=out)


def library_convolution(x, weight, *, stride, padding, dilation, transposed, output_padding, groups, bias):
    parts = 1 if torch.backends.cudnn.allow_tf32 else 2
    last = getattr(torch, {4: "channels_last", 5: "channels_last_3d"}.get(x.dim(), "contiguous_format"))
    plain = torch.contiguous_format
    if (
        all(
            one.is_cuda and one.dtype == torch.float32
            for one in (x, weight, *([] if bias is None else [bias]))
        )
        and x.dim() > 2
        and groups == 1
        and (not transposed or all(step == 1 for step in dilation))
        and any(
            x.is_contiguous(memory_format=order) and weight.is_contiguous(memory_format=order)
            for order in (plain, last)
        )
    ):
        if transposed:
            sizes = [
                (size - 1) * step - 2 * pad + taps + more
                for size, step, pad, taps, more in zip(
                    x.shape[2:], stride, padding, weight.shape[2:], output_padding, strict=True
                )
            ]
        else:
            sizes = [
                (size + 2 * pad - gap * (taps - 1) - 1) // step + 1
                for size, step, pad, taps, gap in zip(
                    x.shape[2:], stride, padding, weight.shape[2:], dilation, strict=True
                )
            ]
        outs = weight.shape[1 if transposed else 0]
        if _convolution_pays(x, outs, weight[0, 0].numel(), sizes, stride if transposed else None, parts):
            is_plain = x.is_contiguous() and weight.is_contiguous()
            out = torch.empty((x.shape[0], outs, *sizes), dtype=x.dtype, device=x.device, memory_format=plain if is_plain else last)  # fmt: skip
            if transposed:
                transposed_convolution(x, weight, bias, stride, padding, out, parts)
            else:
                convolution(x, weight, bias, stride, padding, dilation, out, parts)
            return out
    return torch.convolution(x, weight, bias, stride, padding, dilation, transposed, output_padding, groups)


def _multiplies(*tensors):
    return (
        all(one.is_cuda and one.dtype == torch.float32 for one in tensors)
        and not torch.backends.cuda.matmul.allow_tf32
    )


def _convolution_pays(x, outs, taps, sizes, transposed_stride, parts):
    """Whether an implicit product is faster than cuDNN, by rates measured on an H100.

    cuDNN in float32: 38 TFLOP/s, less where few terms are summed; about twice that in TF32. Here: the copies of the input at 2.4
    TB/s, then the product at 150 TFLOP/s, or 300 with one part, its sides rounded up to tiles and with 150 terms' time for the start
    and end of a tile, and
    launches: six, and three for each residue of a transposed convolution.
    """
    if min(x.numel(), outs, *sizes) == 0 or x.shape[0] >= 1 << 16 or x[0].numel() * 16 > 2**31:
        return False
    phases = 1
    for step in transposed_stride or ():
        phases *= step
    channels = x.shape[1]
    packed = max(4, 1 << (channels - 1).bit_length()) if channels < 64 else -(-channels // 64) * 64
    pixels = x.shape[0]
    for size in sizes:
        pixels *= size
    terms = max(1, taps // phases)
    cudnn_s = 2 * pixels * outs * channels * terms / (38e12 * min(1.0, (channels * terms / 400) ** 0.5))
    cudnn_s = max(cudnn_s / (2.2 if parts == 1 else 1), 4 * (x.numel() + pixels * outs) / 2.5e12)
    rows = -(-outs // 128) * 128 if outs > 64 else 64
    ks = -(-packed * terms // 64) * 64
    product_s = 2 * pixels * rows * (ks + 150) / (150e12 if parts == 2 else 300e12)
    ours_s = x.numel() * (8 + 2 * parts * packed / channels) / 2.4e12 + max(
        product_s, 4 * pixels * outs / 2.2e12
    )
    return ours_s + LAUNCH_S * (6 + 3 * phases) < 0.95 * cudnn_s
