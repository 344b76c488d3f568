"""Soft limiting of complex numbers followed by a complex gain per channel.

    y[n, c] = w[c] * z[n, c] / sqrt(1 + |z[n, c]|^2)

Complex-valued networks (a modReLU that is smooth), models of power amplifiers and of transmitters, equalizers.

Where time is lost: eager computes the absolute value with a hypotenuse in a pass of its own, then scales and multiplies
in two more; compilers leave complex numbers to eager kernels. As pairs of floats it is a handful of multiplications for
16 bytes moved.

Bytes: 16 per element at complex64, plus 8 per channel. Source: Arjovsky, Shah, Bengio, "Unitary Evolution Recurrent
Neural Networks", arXiv 1511.06464; Rapp, "Effects of HPA-nonlinearity on a 4-DPSK/OFDM signal", 1991.
"""

import torch
import torch.nn as nn

from kernelbench_tasks import Dim

DIMS = {"rows": Dim(1, 16384, default=512, gpu=8192), "channels": Dim(1, 4096, default=256, gpu=2048)}


class Model(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.gain = nn.Parameter(torch.randn(channels, dtype=torch.complex64))

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        return z * torch.rsqrt(1.0 + z.abs().square()) * self.gain


def get_inputs(rows: int = 512, channels: int = 256) -> list[torch.Tensor]:
    return [torch.randn(rows, channels, dtype=torch.complex64)]


def get_init_inputs(channels: int = 256) -> list[int]:
    return [channels]
