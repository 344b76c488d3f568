"""What a back end implements: :class:`Backend` describes a kind of device, :class:`Device` is one that is open."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

#: The dtype of products under torch's autocast, by the task's precision tier. Autocast has no float8, so that tier uses
#: bfloat16.
AUTOCAST_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp8": "bfloat16"}
#: Two clocks count as different beyond this share.
_MOVED = 0.02


@dataclass(frozen=True)
class Clock:
    """A GPU's clock at one instant.

    Attributes:
        sm_mhz: of the multiprocessors.
        reasons: why it is not higher, in NVML's words; empty if it is not throttled.
    """

    sm_mhz: int
    reasons: tuple[str, ...]

    def moved_from(self, other: Clock) -> bool:
        """Whether times on the two are not comparable."""
        return abs(self.sm_mhz - other.sm_mhz) > _MOVED * max(self.sm_mhz, other.sm_mhz)


@dataclass(frozen=True)
class Caps:
    """What a call of a task may take at a sampled shape: memory, and time estimated from rough rates.

    Attributes:
        held_bytes: weights, inputs, outputs and the largest intermediate, together.
        call_s: seconds that a call of the reference may take.
        flops_per_s: multiplications and additions in float32.
        bytes_per_s: read or written.
        operation_s: of one operation of torch, whatever it computes.
        judging_bytes: memory of the same kind that judging takes for one element of an output, whatever its dtype.
    """

    held_bytes: int
    call_s: float
    flops_per_s: float
    bytes_per_s: float
    operation_s: float
    judging_bytes: int = 0

    def allow(
        self,
        *,
        held_bytes: int,
        written_bytes: int,
        flops: int,
        operations: int,
        outputs: int,
        passes: int,
        share: float = 1.0,
    ) -> bool:
        """Whether a shape of these figures stays within the caps. ``passes`` counts the forward pass's work.

        ``share`` allows only that part of memory and time.
        """
        held_bytes += outputs * self.judging_bytes
        # What is written was read too.
        seconds = (
            flops / self.flops_per_s + 2 * written_bytes / self.bytes_per_s + operations * self.operation_s
        )
        return held_bytes <= share * self.held_bytes and passes * seconds <= share * self.call_s


class EnergyCounter(Protocol):
    """A counter of the energy that a device has used. It is read; no clock and no power limit is ever changed.

    Attributes:
        name: of what it counts, for people.
        refresh_s: about how often it is brought up to date.
    """

    @property
    def name(self) -> str: ...
    @property
    def refresh_s(self) -> float: ...

    def read_mj(self) -> float:
        """Millijoules since some instant in the past; never falls."""
        ...


class Device(Protocol):
    """A device on which modules are run and timed.

    Attributes:
        kind: the name of its back end.
        is_accelerator: see :class:`Backend`.
        index: which of several.
        count: how many such devices the machine has.
        baseline_modes: names of :data:`evaluator.baselines.MODES` that exist on it.
        autocast_modes: more of them, for tasks of a tier in :data:`AUTOCAST_DTYPES`.
        input_cap_bytes: largest total size of a task's inputs that the sampler draws.
        caps: what a call may take at a shape that the sampler draws.
        memory_limit_bytes: private memory that one untrusted process may use.
        memory_bytes: all memory of the device; 0 on the CPU.
        share_bytes: most device memory for the inputs of one process, and for its outputs; 0 on the CPU.
        block_target_us: how long the shorter block of a pair should take.
        architecture: what CUDA code is compiled for (``TORCH_CUDA_ARCH_LIST``), such as ``9.0``; empty on a CPU.
    """

    @property
    def kind(self) -> str: ...
    @property
    def is_accelerator(self) -> bool: ...
    @property
    def index(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def baseline_modes(self) -> tuple[str, ...]: ...
    @property
    def autocast_modes(self) -> tuple[str, ...]: ...
    @property
    def input_cap_bytes(self) -> int: ...
    @property
    def caps(self) -> Caps: ...
    @property
    def memory_limit_bytes(self) -> int: ...
    @property
    def memory_bytes(self) -> int: ...
    @property
    def share_bytes(self) -> int: ...
    @property
    def block_target_us(self) -> float: ...
    @property
    def architecture(self) -> str: ...

    def clock(self) -> Clock | None:
        """The clock now; None if it cannot be read."""
        ...

    def facts(self) -> dict[str, Any]:
        """The device's part of a verdict's environment."""
        ...

    def energy_counter(self) -> EnergyCounter | str:
        """The device's counter, or in one sentence why there is none."""
        ...


@dataclass(frozen=True)
class Backend:
    """A kind of device: what code asks instead of comparing names.

    Attributes:
        name: in requests, manifests and verdicts.
        is_accelerator: it has memory of its own, does what is queued while the host goes on, and replays graphs.
        cores_per_referee: a referee keeps a process per open task, one per candidate and a few that compile. On a CPU all
            of them compute there.
        most_referees: on one device.
        worth_sharing: fewer entries of a task than this stay with the referee that has the task open.
        open: the first of the visible devices (as ``CUDA_VISIBLE_DEVICES`` names them; None: this process's own).
        is_usable: whether the machine has one, and a torch that was built for it.
        ceilings: measures the current device, see :mod:`evaluator.profiling.ceilings`.
        visible: UUIDs of the accelerators that this process may use.
        memory_bytes: all memory of the accelerator with this UUID.
    """

    name: str
    is_accelerator: bool
    cores_per_referee: float
    most_referees: int
    worth_sharing: int
    open: Callable[[str | None], Device]
    is_usable: Callable[[], bool]
    ceilings: Callable[[], dict[str, Any]]
    visible: Callable[[], list[str]] = list
    memory_bytes: Callable[[str], int] = lambda uuid: 0
