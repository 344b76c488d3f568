"""The interface of a device."""

from __future__ import annotations

from typing import Any, Protocol


class Device(Protocol):
    """A device on which modules are run and timed.

    Attributes:
        kind: ``cpu`` or ``cuda``.
        baseline_modes: names of :data:`evaluator.roles.variants.MODES` that exist on it.
        input_cap_bytes: largest total size of a task's inputs that the sampler draws.
        memory_limit_bytes: private memory that one untrusted process may use.
        block_target_us: how long the shorter block of a pair should take.
        architecture: what CUDA code is compiled for (``TORCH_CUDA_ARCH_LIST``), such as ``9.0``; empty on a CPU.
    """

    @property
    def kind(self) -> str: ...
    @property
    def baseline_modes(self) -> tuple[str, ...]: ...
    @property
    def input_cap_bytes(self) -> int: ...
    @property
    def memory_limit_bytes(self) -> int: ...
    @property
    def block_target_us(self) -> float: ...
    @property
    def architecture(self) -> str: ...

    def facts(self) -> dict[str, Any]:
        """The device's part of a verdict's environment."""
        ...
