"""Compiles a candidate's Triton kernels without a device: its module runs on the host, and a launch does nothing.

What Triton compiles depends on dtypes, on which sizes and addresses are multiples of 16, and on constants. All of
these are the same on the host. So a process without a GPU can fill the cache of the judged process while others
time. The driver here answers for a GPU of the same architecture. Other uses of a GPU fail, and those kernels are
compiled later, as without a rehearsal.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_WARP = 32
#: More than any kernel asks for. The real device refuses a launch that exceeds its limit.
_SHARED_BYTES, _REGISTERS, _THREADS, _MULTIPROCESSORS = 227 << 10, 1 << 16, 1024, 132


def prepare(architecture: str) -> None:
    """Gives this process's triton a driver of a GPU that does not exist.

    Called in the process of a candidate, before its file is imported. Does nothing without triton.

    Args:
        architecture: such as ``9.0``.
    """
    try:
        from triton.runtime.autotuner import Autotuner
        from triton.runtime.driver import driver
    except ModuleNotFoundError:
        return
    # Only the device can tell which configuration is the fastest, so results must not come from a file.
    Autotuner.check_disk_cache = _forgotten
    major, minor = (int(part) for part in architecture.split("."))
    driver.set_active(_Driver(major, minor))


def _forgotten(tuner: Any, tuning_key: Any, configurations: Any, benchmark: Callable[[], None]) -> bool:
    """Replaces the autotuner's own file of results."""
    benchmark()
    return False


class _Utilities:
    """What triton asks a device about a compiled kernel."""

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {
            "max_shared_mem": _SHARED_BYTES,
            "max_num_regs": _REGISTERS,
            "multiprocessor_count": _MULTIPROCESSORS,
            "warpSize": _WARP,
            "sm_clock_rate": 1_980_000,
            "mem_clock_rate": 2_619_000,
            "mem_bus_width": 5120,
        }

    def load_binary(
        self, name: str, kernel: bytes, shared: int, device: int
    ) -> tuple[int, int, int, int, int]:
        """Module, function, registers, spills and most threads of a block."""
        return 1, 1, _WARP, 0, _THREADS


class _Launcher:
    """Launches nothing.

    Triton's own launcher compiles a C file for each signature, which the real process will need too.
    """

    def __init__(self, source: Any, metadata: Any) -> None:
        try:
            from triton.backends.nvidia.driver import CudaLauncher

            CudaLauncher(source, metadata)
        except Exception:
            # No compiler, or no driver to link with: the real process does it.
            return

    def __call__(self, *arguments: Any, **named: Any) -> None:
        return


class _Driver:
    """The part of a triton driver that compiling and launching use."""

    launcher_cls = _Launcher

    def __init__(self, major: int, minor: int) -> None:
        self._capability = (major, minor)
        self.utils = _Utilities()

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        major, minor = self._capability
        return GPUTarget("cuda", major * 10 + minor, _WARP)

    def get_device_capability(self, device: int = 0) -> tuple[int, int]:
        return self._capability

    def get_current_device(self) -> int:
        return 0

    def set_current_device(self, device: int) -> None:
        return

    def get_current_stream(self, device: int | None = None) -> int:
        return 0

    def get_active_torch_device(self) -> Any:
        import torch

        return torch.device("cpu")

    def get_benchmarker(self) -> Callable[..., list[float]]:
        """An autotuner's timer: every configuration is compiled, and none is faster than another."""

        def once(kernel_call: Callable[[], Any], quantiles: Any = None, **_: Any) -> list[float]:
            kernel_call()
            return [1.0] * 3

        return once
