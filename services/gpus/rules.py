"""The rules by which a worker takes its GPU out, one function each; all of them in this file.

A rule looks at the readings of the last `KEPT_S` seconds, the newest last, and says in a sentence what is wrong, or None. What
is over is forgiven: when no rule objects any more, the worker tries a kernel whose result is known and comes back. Nothing
here changes a setting of the GPU or resets it; the sentence says where a person must.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from services.gpus.reading import Reading

KEPT_S = 600.0
PERSIST_S = 120.0
_PERSIST_READINGS = 3
_NOBODYS_BYTES = 2 << 30
# NVIDIA's list of Xid errors. Only those of the hardware and of the driver: 13, 31, 43 and 45 follow from what a program did,
# and programs that do such things are what a worker is for.
HARDWARE_XIDS = {
    48: "memory error that ECC could not correct",
    62: "micro-controller halted",
    64: "a bad row of the memory could not be replaced",
    74: "NVLink error",
    79: "the GPU fell off the bus",
    94: "contained memory error",
    95: "uncontained memory error",
    119: "the GPU's own processor timed out",
    120: "the GPU's own processor failed",
    140: "memory error that was not recovered from",
}


@dataclass(frozen=True)
class Finding:
    """Something wrong.

    Attributes:
        rule: its name.
        sentence: for people.
        stops: whether what runs now is stopped and given back, since its verdicts could not be believed; else only
            nothing new is begun.
    """

    rule: str
    sentence: str
    stops: bool = True


def findings(readings: Sequence[Reading]) -> list[Finding]:
    """What is wrong by these readings of one GPU."""
    if not readings:
        return []
    found = []
    for name, (rule, stops) in RULES.items():
        sentence = rule(readings)
        if sentence is not None:
            found.append(Finding(name, sentence, stops))
    return found


def _lost(readings: Sequence[Reading]) -> str | None:
    lost = readings[-1].lost
    return f"the GPU does not answer ({lost}); its machine may need a restart" if lost else None


def _ecc(readings: Sequence[Reading]) -> str | None:
    counts = [one.uncorrected for one in readings if one.uncorrected is not None]
    # The count begins anew when the driver is loaded again: a smaller one is no error.
    new = sum(max(0, after - before) for before, after in pairwise(counts))
    return f"{new} memory errors that ECC could not correct in the last minutes" if new else None


def _remap(readings: Sequence[Reading]) -> str | None:
    last = readings[-1]
    if last.remap_failed:
        return "a bad row of the GPU's memory could not be replaced; the card needs service"
    return "a bad row of the GPU's memory is replaced at the next reset only" if last.remap_pending else None


def _recovery(readings: Sequence[Reading]) -> str | None:
    action = readings[-1].recovery
    return (
        f"the driver asks for a recovery of the GPU (action {action}) before it is used" if action else None
    )


def _xid(readings: Sequence[Reading]) -> str | None:
    seen = sorted({number for one in readings for number in one.xids if number in HARDWARE_XIDS})
    told = ", ".join(f"Xid {number} ({HARDWARE_XIDS[number]})" for number in seen)
    return f"the driver reported in the last minutes: {told}" if seen else None


def _slowdown(readings: Sequence[Reading]) -> str | None:
    """Held back without a pause; for a moment it is the referee's business, which drops what it timed meanwhile."""
    lasting = _lasting(readings)
    always = frozenset.intersection(*(one.slowdowns for one in lasting)) if lasting else frozenset()
    if not always:
        return None
    return f"clocks have been held back for {PERSIST_S:.0f} s ({', '.join(sorted(always))}); look at cooling and power"


def _memory(readings: Sequence[Reading]) -> str | None:
    """Where the list of processes is empty although a referee of ours runs, it cannot be believed (containers)."""
    lasting = _lasting(readings)
    excesses = [_held_by_nobody(one) for one in lasting]
    if not excesses or any(one is None or one < _NOBODYS_BYTES for one in excesses):
        return None
    gib = (excesses[-1] or 0) / 2**30
    return f"{gib:.1f} GiB of the GPU's memory are held by no process that can be seen from here"


def _held_by_nobody(one: Reading) -> int | None:
    if one.used_bytes is None or (one.held_bytes is None and one.own):
        return None
    return one.used_bytes - (one.held_bytes or 0)


def _lasting(readings: Sequence[Reading]) -> list[Reading]:
    """The readings of the last `PERSIST_S`, if there are enough and they reach back so far."""
    end = readings[-1].at_s
    if end - readings[0].at_s < PERSIST_S:
        return []
    last = [one for one in readings if end - one.at_s <= PERSIST_S]
    return last if len(last) >= _PERSIST_READINGS and not any(one.lost for one in last) else []


#: Name, rule, and whether what runs is stopped.
RULES: dict[str, tuple[Callable[[Sequence[Reading]], str | None], bool]] = {
    "gpu_lost": (_lost, True),
    "gpu_ecc": (_ecc, True),
    "gpu_remap": (_remap, True),
    "gpu_recovery": (_recovery, True),
    "gpu_xid": (_xid, True),
    "gpu_slowdown": (_slowdown, False),
    "gpu_memory": (_memory, False),
}
#: Found by running it, see `services.worker.health`.
KNOWN_KERNEL = "gpu_known_kernel"
