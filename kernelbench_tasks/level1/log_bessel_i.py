"""Logarithm of the modified Bessel function of the first kind, of real order.

    log I_v(x) = logsumexp over k of (2 k + v) log(x / 2) - lgamma(k + 1) - lgamma(k + v + 1)

Normalizing constant of the von Mises-Fisher distribution (directions in embeddings), of Rice noise in radar and MRI, of
Bessel filters. In the logarithm, since the function itself leaves the range of float32 at once.

Small by nature: a call has a few million pairs of order and argument at most, and sums tens of terms for each.

Where time is lost: there is no operation for real orders, so 112 terms per element are written to memory and read back
several times. The terms follow from one another by a multiplication, stay in registers, and most elements need a few
dozen; how many depends on order and argument, so that neighbors in a warp should be alike.

Bytes: 12 per element at float32, against 1.3 kB in eager. Source: NIST Digital Library of Mathematical Functions,
10.25.2; "Accurate Computation of the Logarithm of Modified Bessel Functions on GPUs", arXiv 2409.08729.
"""

import torch
import torch.nn as nn

from kernelbench_tasks import Dim

DIMS = {"count": Dim(1, 2097152, default=8192, gpu=2097152)}
DOMAIN = {"order": "in_range", "x": "in_range"}
#: With arguments up to 48 the largest term stands at 24 or before and the rest beyond this one is below float64's spacing.
TERMS = 112


class Model(nn.Module):
    def forward(self, order: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        k = torch.arange(TERMS, dtype=x.dtype, device=x.device)
        order, x = order.unsqueeze(-1), x.unsqueeze(-1)
        terms = (2 * k + order) * torch.log(x / 2) - torch.lgamma(k + 1) - torch.lgamma(k + order + 1)
        return torch.logsumexp(terms, dim=-1)


def get_inputs(count: int = 8192) -> list[torch.Tensor]:
    return [torch.rand(count) * 48, 0.5 + torch.rand(count) * 47.5]


def get_init_inputs() -> list[int]:
    return []
