"""Negative log-likelihood of directions under von Mises-Fisher distributions, per dimension, forward and backward.

    y[n] = -(v log k - (d / 2) log(2 pi) - log I_v(k) + k * m . x) / d,   v = d / 2 - 1, k = concentration[n], |m| = |x| = 1

Probabilistic embeddings of faces and words, mixture models of directions, spherical latent variables.

Where time is lost: the Bessel function of order v comes as a series of 112 terms per sample, which autograd keeps in
memory with all of its steps. Its derivative is a ratio of two such functions, which the same loop in registers gives
for free.

Bytes at float32: 16 per component and 4 per sample, against 2 kB per sample in eager. Source: NIST Digital Library of
Mathematical Functions, 10.25.2 and 10.29; Davidson et al., "Hyperspherical Variational Auto-Encoders", arXiv
1804.00891.
"""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

from kernelbench_tasks import Dim

DIMS = {"samples": Dim(1, 262144, default=1024, gpu=262144), "dims": Dim(2, 64, default=16, gpu=64)}
DIRECTION = "forward_backward"
#: With concentrations up to 48 what lies beyond is below the spacing of float64.
TERMS = 112


class Model(nn.Module):
    def forward(self, mean: torch.Tensor, concentration: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        dims = x.shape[-1]
        order = dims / 2 - 1
        k = torch.arange(TERMS, dtype=x.dtype, device=x.device)
        constants = torch.lgamma(k + 1) + torch.lgamma(k + order + 1)
        terms = (2 * k + order) * torch.log(concentration / 2).unsqueeze(-1) - constants
        log_bessel = torch.logsumexp(terms, dim=-1)
        alignment = (F.normalize(mean, dim=-1) * F.normalize(x, dim=-1)).sum(-1)
        log_density = order * concentration.log() - dims / 2 * math.log(2 * math.pi) - log_bessel
        return -(log_density + concentration * alignment) / dims


def get_inputs(samples: int = 1024, dims: int = 16) -> list[torch.Tensor]:
    concentration = 1.0 + 47.0 * torch.rand(samples)
    return [torch.randn(samples, dims), concentration, torch.randn(samples, dims)]


def get_init_inputs() -> list[int]:
    return []
