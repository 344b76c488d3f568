"""Where the referees of a batch run: how many on which device, and with which GPU in sight."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from evaluator.errors import EvaluatorError

#: A referee keeps a process per open task, one per candidate and a few that compile.
_CORES_PER_REFEREE = 4
_BYTES_PER_REFEREE = 12 << 30
_MOST_PER_DEVICE = 4
#: Each of a referee's processes on a GPU shares a sixteenth of its memory with the referee: candidate, baselines, the references of
#: two tasks, and what is kept of one that has ended. Beside that there are contexts and what modules allocate themselves. Four
#: referees on an H200 were one too many: a candidate was told that it had asked for too much. It holds two, as does a card of 80 GiB.
_SHARED_OF_GPU = 5 / 16
_OWN_GPU_BYTES = 8 << 30


@dataclass(frozen=True)
class Place:
    """The seat of one referee.

    Attributes:
        name: for messages, ``cpu-0`` or ``GPU-...-1``.
        device: ``cpu`` or ``cuda``.
        visible_gpu: value of ``CUDA_VISIBLE_DEVICES``; None on a CPU.
        work_dir: its own folder for compile caches: referees at one time may not sweep each other's. What can be shared
            (verdicts, built extensions, times of baselines) lies in the batch's.
    """

    name: str
    device: str
    visible_gpu: str | None
    work_dir: Path


def places(devices: set[str], gpus: str, jobs: int | None, work_dir: Path) -> list[Place]:
    """Every referee to start for a batch on these devices.

    Args:
        devices: what the manifest asks for.
        gpus: ``all``, or positions in the list of visible GPUs, separated by commas.
        jobs: referees per device; chosen by cores and memory if None.
        work_dir: under which each referee gets a folder.

    Raises:
        EvaluatorError: ``gpus`` names a GPU that is not there.
    """
    seats: list[tuple[str, str | None]] = [("cpu", None)] if "cpu" in devices else []
    if "cuda" in devices:
        seats += [("cuda", uuid) for uuid in choose(gpus, visible_gpus())]
    count = jobs or min(_MOST_PER_DEVICE, _sensible_jobs(len(seats)))
    if jobs is None and "cuda" in devices:
        memory = [_memory_bytes(uuid) for device, uuid in seats if device == "cuda" and uuid]
        count = max(1, min(count, *(referees_in(total_bytes) for total_bytes in memory)))
    return [
        Place(f"{uuid or device}-{index}", device, uuid, work_dir / "batch" / f"{uuid or device}-{index}")
        for index in range(count)
        for device, uuid in seats
    ]


def referees_in(total_bytes: int) -> int:
    """How many referees have room in a GPU's memory."""
    return int(total_bytes / (total_bytes * _SHARED_OF_GPU + _OWN_GPU_BYTES))


def _memory_bytes(uuid: str) -> int:
    import pynvml

    return int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByUUID(uuid)).total)


def _sensible_jobs(devices: int) -> int:
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    by_cores = len(os.sched_getaffinity(0)) // (_CORES_PER_REFEREE * max(devices, 1))
    by_memory = memory // (_BYTES_PER_REFEREE * max(devices, 1))
    return max(1, min(by_cores, by_memory))


def choose(gpus: str, visible: list[str]) -> list[str]:
    """The UUIDs that ``all`` or a list of positions such as ``0,2`` stands for.

    Raises:
        EvaluatorError: there is none, or none at a position.
    """
    if not visible:
        raise EvaluatorError("the manifest asks for cuda, and no NVIDIA GPU is visible here")
    if gpus == "all":
        return visible
    chosen = []
    for word in gpus.split(","):
        if not word.strip().isdigit() or int(word) >= len(visible):
            raise EvaluatorError(
                f"--gpus {gpus}: {word.strip()!r} is none of the {len(visible)} visible GPUs (counted from 0)"
            )
        chosen.append(visible[int(word)])
    return list(dict.fromkeys(chosen))


def visible_gpus() -> list[str]:
    """UUIDs of the GPUs that this process may use: unlike numbers, NVML and CUDA read them alike."""
    try:
        import pynvml

        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
        every = [str(pynvml.nvmlDeviceGetUUID(handle)) for handle in handles]
    except Exception:  # noqa: BLE001 - NVML raises its own kinds, a missing library another
        return []
    return allowed(every, os.environ.get("CUDA_VISIBLE_DEVICES"))


def allowed(every: list[str], setting: str | None) -> list[str]:
    """What ``CUDA_VISIBLE_DEVICES`` leaves of all GPUs, in its order."""
    if setting is None:
        return every
    chosen = []
    for word in (part.strip() for part in setting.split(",")):
        if word.isdigit() and int(word) < len(every):
            chosen.append(every[int(word)])
        elif word in every or word.startswith("MIG-"):
            chosen.append(word)
        else:
            break  # CUDA, too, ignores whatever follows a name that it does not know
    return chosen
