"""Which sandbox tiers work here: each is entered and attacked from inside, as at every start of a referee."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from evaluator.counting import counted
from evaluator.devices import Device
from evaluator.doctor.findings import BAD, DOUBTFUL, GOOD, Line, Section
from evaluator.errors import EvaluatorError, SandboxUnavailable
from evaluator.referee.processes.fleet import TIERS, Fleet
from evaluator.sandbox import landlock

_SYSCTLS = (
    "/proc/sys/user/max_user_namespaces",
    "/proc/sys/kernel/unprivileged_userns_clone",
    "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
)


def examine(device: Device, minimum_tier: str) -> Section:
    """Every tier on one device: whether it holds, why not, and how each attack on it ended.

    Fact ``in_force`` is the tier that a referee would use, None if no tier of at least ``minimum_tier`` holds.
    """
    section = Section(f"Isolation for {device.kind}")
    tiers: dict[str, Any] = {}
    for tier in TIERS:
        tiers[tier] = _try(device, tier)
    allowed = TIERS[: TIERS.index(minimum_tier) + 1]
    section.facts = {
        "tiers": tiers,
        "in_force": next((tier for tier in allowed if tiers[tier]["holds"]), None),
        "root": os.geteuid() == 0,
        "landlock_abi": landlock.abi(),
    }
    holds_any = section.facts["in_force"] is not None
    for tier, report in tiers.items():
        if report["holds"]:
            words = f"holds: {counted(len(report['attacks']), 'attack')} from inside, none worked"
            section.lines.append(Line(tier, GOOD, words))
        else:
            state = DOUBTFUL if holds_any else BAD
            section.lines.append(Line(tier, state, f"does not hold: {report['why_not']}", _advice(tier)))
    if not holds_any:
        found = "no tier isolates well enough, so nothing untrusted runs here"
        advice = f"Set up one of {', '.join(allowed)} as described above, or use another machine. No option turns the sandbox off."
        section.lines.append(Line("judging", BAD, found, advice))
    return section


def _try(device: Device, tier: str) -> dict[str, Any]:
    # Its own folder: an examination must not disturb what is in use elsewhere.
    with tempfile.TemporaryDirectory(prefix="kernelwright-doctor-") as folder:
        try:
            fleet = Fleet(device, Path(folder), tier, exactly=True)
        except SandboxUnavailable as refusal:
            return {"holds": False, "why_not": _shortened(str(refusal), tier), "attacks": refusal.attacks}
        except (EvaluatorError, OSError) as error:
            return {"holds": False, "why_not": str(error), "attacks": []}
        try:
            return {"holds": True, "why_not": None, "attacks": fleet.attacks}
        finally:
            fleet.close()


def _shortened(refusal: str, tier: str) -> str:
    """The middle of the sentence: the part about this tier."""
    _, _, rest = refusal.partition(f"({tier}: ")
    return rest.rpartition("). It needs")[0] or refusal


def _advice(tier: str) -> str:
    if tier == "namespaces":
        return (
            "It needs namespaces: as a user, user namespaces must be allowed ("
            + "; ".join(f"{path} = {_read(path)}" for path in _SYSCTLS)
            + "). In a container, allow them with a seccomp profile that permits unshare and mount."
        )
    root = (
        " Run as a user other than root: limits on processes do not apply to root."
        if os.geteuid() == 0
        else ""
    )
    return (
        f"It needs a kernel with Landlock (ABI here: {landlock.abi()}, 0 is none or off) and seccomp.{root}"
    )


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii").strip()
    except OSError:
        return "absent"
