"""The rules by which a worker takes its GPU out of service, one function each; all rules are in this file.

A rule gets the readings of the last `KEPT_S` seconds, newest last, and returns a sentence about the problem, or None. When no
rule finds a problem any more, the worker runs a kernel with a known result and returns to service. No rule changes GPU settings
or resets the GPU; the sentence says what an operator must do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from services.gpus.reading import Reading

KEPT_S = 600.0
PERSIST_S = 120.0
_PERSIST_READINGS = 3
_UNEXPLAINED_BYTES = 2 << 30
# From NVIDIA's list of Xid errors, only hardware and driver errors. A program can cause 13, 31, 43 and 45, and workers must
# expect candidates that do.
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
    """A problem with a GPU.

    Attributes:
        rule: the rule's name.
        sentence: a description for people.
        stops: whether the worker also stops and returns running work, whose verdicts would be unreliable; otherwise it only
            starts no new work.
    """

    rule: str
    sentence: str
    stops: bool = True


def findings(readings: Sequence[Reading]) -> list[Finding]:
    """Return the problems that the rules find in the readings of one GPU."""
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
    # The count restarts when the driver is reloaded, so a smaller count is not an error.
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
    """Report only continuous slowdowns; the referee handles brief ones by dropping the affected timings."""
    lasting = _lasting(readings)
    always = frozenset.intersection(*(one.slowdowns for one in lasting)) if lasting else frozenset()
    if not always:
        return None
    return f"clocks have been held back for {PERSIST_S:.0f} s ({', '.join(sorted(always))}); look at cooling and power"


def _memory(readings: Sequence[Reading]) -> str | None:
    """Report memory held by no visible process. In containers the process list may be empty; it is then ignored if `own`."""
    lasting = _lasting(readings)
    excesses = [_unexplained_bytes(one) for one in lasting]
    if not excesses or any(one is None or one < _UNEXPLAINED_BYTES for one in excesses):
        return None
    gib = (excesses[-1] or 0) / 2**30
    return f"{gib:.1f} GiB of the GPU's memory are held by no process that can be seen from here"


def _unexplained_bytes(one: Reading) -> int | None:
    if one.used_bytes is None or (one.held_bytes is None and one.own):
        return None
    return one.used_bytes - (one.held_bytes or 0)


def _lasting(readings: Sequence[Reading]) -> list[Reading]:
    """Return the readings of the last `PERSIST_S` seconds; none if they are too few, span less time, or the GPU was lost."""
    end = readings[-1].at_s
    if end - readings[0].at_s < PERSIST_S:
        return []
    last = [one for one in readings if end - one.at_s <= PERSIST_S]
    return last if len(last) >= _PERSIST_READINGS and not any(one.lost for one in last) else []


#: By rule name: the rule, and whether it stops running work.
RULES: dict[str, tuple[Callable[[Sequence[Reading]], str | None], bool]] = {
    "gpu_lost": (_lost, True),
    "gpu_ecc": (_ecc, True),
    "gpu_remap": (_remap, True),
    "gpu_recovery": (_recovery, True),
    "gpu_xid": (_xid, True),
    "gpu_slowdown": (_slowdown, False),
    "gpu_memory": (_memory, False),
}
#: Name of the check that runs a kernel with a known result, see `services.worker.health`.
KNOWN_KERNEL = "gpu_known_kernel"
