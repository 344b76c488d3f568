"""Where the referees of a batch run: how many on which device, and with which visible GPU."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from evaluator.counting import counted
from evaluator.devices import BACKENDS
from evaluator.errors import EvaluatorError

_BYTES_PER_REFEREE = 12 << 30
#: Bytes per referee that does not judge: no candidates beside the task, and no compilers.
_BYTES_PER_UNTIMED_REFEREE = 4 << 30
#: What a referee's processes take of a GPU beyond the memory shared with the referee
#: (:mod:`evaluator.referee.memory.sizes`), which shrinks with more referees: five contexts of half a GiB, and
#: modules' own allocations. With a third of a referee's part left for these, a card of 140 GiB has room for seven,
#: one of 80 GiB for four.
_OWN_GPU_BYTES = 13 << 29
_OWN_SHARE = 1 / 3


@dataclass(frozen=True)
class Place:
    """The place of one referee.

    Attributes:
        name: for messages, ``cpu-0`` or ``GPU-...-1``.
        device: name of a back end.
        visible_gpu: value of ``CUDA_VISIBLE_DEVICES``; None on a CPU.
        work_dir: its own folder for compile caches: concurrent referees must not delete each other's. What can be
            shared (verdicts, built extensions, times of baselines) is in the batch's folder.
        referees: how many run on the same device, including this one.
    """

    name: str
    device: str
    visible_gpu: str | None
    work_dir: Path
    referees: int = 1


def places(
    devices: set[str],
    gpus: str,
    jobs: int | None,
    work_dir: Path,
    warn: Callable[[str], None] = lambda sentence: None,
) -> list[Place]:
    """Every referee to start for a batch on these devices.

    Args:
        devices: what the manifest asks for.
        gpus: ``all``, or positions in the list of visible GPUs, separated by commas.
        jobs: referees per device; chosen by cores and memory if None.
        work_dir: under which each referee gets a folder.
        warn: told when a GPU has less room than its referees take.

    Raises:
        EvaluatorError: ``gpus`` names a GPU that does not exist.
    """
    seats: list[tuple[str, str | None]] = []
    for backend in BACKENDS.values():
        if backend.name in devices:
            uuids = choose(gpus, backend.visible()) if backend.is_accelerator else [None]
            seats += [(backend.name, uuid) for uuid in uuids]
    counts = [jobs or _sensible_jobs(device, uuid, len(seats)) for device, uuid in seats]
    found = []
    for index in range(max(counts)):
        for (device, uuid), count in zip(seats, counts, strict=True):
            name = f"{uuid or device}-{index}"
            if index < count:
                found.append(Place(name, device, uuid, work_dir / "batch" / name, count))
    if sentence := crowded(found):
        warn(sentence)
    return found


def untimed_jobs(device: str) -> int | None:
    """How many referees may look at tasks side by side without timing: one per core.

    None: as many as judge on a GPU.
    """
    memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    by_memory = memory_bytes // _BYTES_PER_UNTIMED_REFEREE
    return (
        max(1, min(len(os.sched_getaffinity(0)), by_memory)) if not BACKENDS[device].is_accelerator else None
    )


def referees_in(total_bytes: int) -> int:
    """How many referees fit in a GPU's memory; at least one is tried."""
    return max(1, int(total_bytes * _OWN_SHARE / _OWN_GPU_BYTES))


def crowded(seats: Sequence[Place]) -> str:
    """A warning if a GPU has less room than the requested number of referees takes; otherwise empty."""
    for place in seats:
        if place.visible_gpu is not None:
            room = referees_in(BACKENDS[place.device].memory_bytes(place.visible_gpu))
            if place.referees > room:
                return (
                    f"{counted(place.referees, 'referee')} on a GPU with memory for {room}: an evaluation that finds none is judged again alone, "
                    f"which is slower than --jobs {room}"
                )
    return ""


def _sensible_jobs(device: str, uuid: str | None, devices: int) -> int:
    """How many referees a device gets, if the machine has ``devices`` of them."""
    memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    count = sensible_jobs(device, len(os.sched_getaffinity(0)), memory_bytes, devices)
    return count if uuid is None else min(count, referees_in(BACKENDS[device].memory_bytes(uuid)))


def sensible_jobs(device: str, cores: int, memory_bytes: int, devices: int) -> int:
    """How many referees each of ``devices`` devices gets, by the machine's cores and memory."""
    backend = BACKENDS[device]
    by_cores = int(cores / (backend.cores_per_referee * devices))
    by_memory = memory_bytes // (_BYTES_PER_REFEREE * devices)
    return max(1, min(by_cores, by_memory, backend.most_referees))


def choose(gpus: str, visible: list[str]) -> list[str]:
    """The UUIDs for ``all`` or a list of positions such as ``0,2``.

    Raises:
        EvaluatorError: there is none, or none at a position.
    """
    if not visible:
        raise EvaluatorError("the manifest asks for cuda, but no NVIDIA GPU is visible here")
    if gpus == "all":
        return visible
    chosen = []
    for word in gpus.split(","):
        if not word.strip().isdigit() or int(word) >= len(visible):
            raise EvaluatorError(
                f"--gpus {gpus}: {word.strip()!r} is not one of the {len(visible)} visible GPUs (counted from 0)"
            )
        chosen.append(visible[int(word)])
    return list(dict.fromkeys(chosen))
