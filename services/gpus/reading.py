"""Reads the state of a GPU from NVML as plain values; never changes a GPU setting.

Values that the driver or card does not report are None, and the rules (`services.gpus.rules`) ignore them.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Protocol

# nvmlClocksEventReasons by which the hardware or driver lowers the clocks to prevent damage. A power cap is normal under load.
SLOWDOWNS = {0x8: "hw_slowdown", 0x20: "sw_thermal", 0x40: "hw_thermal", 0x80: "hw_power_brake"}
_MOST_EVENTS = 64


@dataclass(frozen=True)
class Reading:
    """The state of a GPU at one moment.

    Attributes:
        at_s: time of the reading, on a monotonic clock.
        lost: why the GPU no longer responds; all other values are then missing.
        uncorrected: memory errors that ECC could not correct, since the driver was loaded.
        remap_failed: a bad memory row could not be remapped.
        remap_pending: a bad memory row will be remapped at the next reset and stays in use until then.
        recovery: the driver's number for the recovery action that the GPU needs before further use; 0: none.
        slowdowns: active slowdowns, by their names in `SLOWDOWNS`.
        xids: Xid numbers of the driver's error reports since the previous reading.
        used_bytes: memory in use, without the memory that the driver reserves.
        held_bytes: the part of it held by visible processes; None if no process is visible.
        own: whether a referee of this worker may hold memory.
    """

    at_s: float
    lost: str | None = None
    uncorrected: int | None = None
    remap_failed: bool | None = None
    remap_pending: bool | None = None
    recovery: int | None = None
    slowdowns: frozenset[str] = frozenset()
    xids: tuple[int, ...] = ()
    used_bytes: int | None = None
    held_bytes: int | None = None
    own: bool = True


class Gpu(Protocol):
    """A source of readings; tests replay recorded ones."""

    def read(self, *, own: bool) -> Reading:
        """Return a reading taken now; GPU failures never raise."""
        ...


class NvmlGpu:
    """A GPU read through NVML.

    Args:
        uuid: the GPU's UUID.

    Raises:
        OSError: NVML is not available, or does not know the GPU.
    """

    def __init__(self, uuid: str) -> None:
        try:
            import pynvml

            self._nvml: Any = pynvml
            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        except Exception as error:  # noqa: BLE001 - NVML raises its own types, the import another
            raise OSError(f"NVML does not know this GPU: {error}") from None
        self._events = self._event_set()

    def read(self, *, own: bool) -> Reading:
        """See `Gpu.read`."""
        nvml, at_s = self._nvml, time.monotonic()
        try:
            bits = nvml.nvmlDeviceGetCurrentClocksEventReasons(self._handle)
        except nvml.NVMLError as error:
            if error.value in (
                nvml.NVML_ERROR_GPU_IS_LOST,
                nvml.NVML_ERROR_UNKNOWN,
                nvml.NVML_ERROR_NOT_FOUND,
            ):
                return Reading(at_s, lost=str(error), own=own)
            bits = 0
        remapped = self._ask(nvml.nvmlDeviceGetRemappedRows)
        memory = self._ask(nvml.nvmlDeviceGetMemoryInfo, nvml.nvmlMemory_v2)
        processes = self._ask(nvml.nvmlDeviceGetComputeRunningProcesses) or ()
        held = [one.usedGpuMemory for one in processes if one.usedGpuMemory is not None]
        kind, counter = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
        return Reading(
            at_s,
            uncorrected=self._ask(nvml.nvmlDeviceGetTotalEccErrors, kind, counter),
            remap_pending=bool(remapped[2]) if remapped else None,
            remap_failed=bool(remapped[3]) if remapped else None,
            recovery=self._recovery(),
            slowdowns=frozenset(name for bit, name in SLOWDOWNS.items() if bits & bit),
            xids=self._xids(),
            used_bytes=int(memory.used) if memory else None,
            held_bytes=sum(held) if held else None,
            own=own,
        )

    def _ask(self, function: Any, *arguments: Any) -> Any:
        try:
            return function(self._handle, *arguments)
        except self._nvml.NVMLError:  # this card or driver does not report it
            return None

    def _recovery(self) -> int | None:
        """Return the recovery action; only drivers since 2025 report it."""
        field = getattr(self._nvml, "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION", None)
        values = self._ask(self._nvml.nvmlDeviceGetFieldValues, [field]) if field is not None else None
        if not values or values[0].nvmlReturn != self._nvml.NVML_SUCCESS:
            return None
        return int(values[0].value.uiVal)

    def _event_set(self) -> Any:
        nvml = self._nvml
        try:
            events = nvml.nvmlEventSetCreate()
            nvml.nvmlDeviceRegisterEvents(self._handle, nvml.nvmlEventTypeXidCriticalError, events)
        except nvml.NVMLError:
            return None
        return events

    def _xids(self) -> tuple[int, ...]:
        found: list[int] = []
        while self._events is not None and len(found) < _MOST_EVENTS:
            try:
                event = self._nvml.nvmlEventSetWait(self._events, 0)
            except self._nvml.NVMLError:  # no event is left: NVML reports a timeout
                break
            found.append(int(event.eventData))
        return tuple(found)
