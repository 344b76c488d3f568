"""ncu's table of counters: which ones are asked for, how its text is read, and the at most 24 per kernel that are kept.

The text comes from a process beside untrusted code, which may have written it itself. So nothing in it is believed but
its form: known columns, plain numbers within bounds, as many rows as were asked for. What does not keep the form is refused
whole. Names of metrics are those of Nsight Compute's documentation; a chip that lacks one answers ``n/a``.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evaluator.integrity.static import clean

#: Characters of a table; one of 32 launches with every attribute of the device takes a tenth of it.
MOST_TEXT = 4 << 20
MOST_COUNTERS = 24
_MOST_COLUMNS, _MOST_NAME, _MOST_VALUE, _MOST_DIGITS = 2000, 160, 1e18, 40
_SHOWN_KERNELS = 6
_SHOWN_STALLS = _SHOWN_PIPES = 3

#: Our name for a counter, with its unit, and ncu's. Percentages are of what the unit can sustain.
PLAIN = {
    "duration_s": "gpu__time_duration.sum",
    "sm_pct": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "dram_pct": "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "l2_pct": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "l1_pct": "l1tex__throughput.avg.pct_of_peak_sustained_active",
    "tensor_pct": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
    "issue_pct": "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "occupancy_pct": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "most_occupancy_pct": "sm__maximum_warps_per_active_cycle_pct",
    "registers_per_thread": "launch__registers_per_thread",
    "shared_bytes_per_block": "launch__shared_mem_per_block",
    "waves": "launch__waves_per_multiprocessor",
    "threads_per_instruction": "smsp__thread_inst_executed_per_inst_executed.ratio",
    "spill_sectors": "l1tex__t_sectors_pipe_lsu_mem_local_op_ld.sum",
}
_SECTORS, _REQUESTS = (f"l1tex__t_{what}_pipe_lsu_mem_global_op_{{}}.sum" for what in ("sectors", "requests"))
#: One counter over another. ncu has ready ratios of sectors, but not on every chip.
RATIOS = {
    "load_sectors_per_request": (_SECTORS.format("ld"), _REQUESTS.format("ld")),
    "store_sectors_per_request": (_SECTORS.format("st"), _REQUESTS.format("st")),
    "bank_conflicts_per_wavefront": (
        "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",
        "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",
    ),
}
#: Blocks that a multiprocessor holds at most, by what holds back more; the smallest is kept as ``blocks_per_sm``.
LIMITS = {
    "registers": "launch__occupancy_limit_registers",
    "shared memory": "launch__occupancy_limit_shared_mem",
    "warps": "launch__occupancy_limit_warps",
    "blocks": "launch__occupancy_limit_blocks",
}
#: The mix of instructions, as how busy each kind keeps its pipe; the three busiest are kept as ``pipe_NAME_pct``.
PIPES = {
    name: f"sm__inst_executed_pipe_{name}.avg.pct_of_peak_sustained_active"
    for name in ("fma", "alu", "lsu", "xu", "fp64")
}
#: Warps that wait for a reason while one instruction is issued; the three largest are kept as ``stall_REASON``.
STALLS = {
    reason: f"smsp__average_warps_issue_stalled_{reason}_per_issue_active.ratio"
    for reason in (
        "long_scoreboard short_scoreboard barrier membar mio_throttle lg_throttle tex_throttle math_pipe_throttle wait "
        "not_selected no_instruction imc_miss branch_resolving dispatch_stall drain sleeping gmma"
    ).split()
}
ASKED = (
    *PLAIN.values(),
    *(name for pair in RATIOS.values() for name in pair),
    *LIMITS.values(),
    *PIPES.values(),
    *STALLS.values(),
)

_SECONDS = {
    "ns": 1e-9, "nsecond": 1e-9, "us": 1e-6, "usecond": 1e-6, "ms": 1e-3, "msecond": 1e-3, "s": 1.0, "second": 1.0,
}  # fmt: skip
_BYTES = {
    f"{prefix}byte{per}": float(scale)
    for prefix, scale in (("", 1), ("K", 10**3), ("M", 10**6))
    for per in ("", "/block")
}
_NUMBER = re.compile(r"\d+(\.\d+)?([eE][+-]?\d{1,3})?|\d{1,3}(,\d{3})+(\.\d+)?", re.ASCII)
_ABSENT = re.compile(r"(\(!\) )?(n/a|-?nan)?", re.IGNORECASE)


@dataclass(frozen=True)
class Launch:
    """One launch of a kernel: its demangled name, and those of ncu's metrics that have a value, in base units."""

    name: str
    values: Mapping[str, float]


@dataclass(frozen=True)
class Counted:
    """What was counted of a kernel.

    Attributes:
        name: demangled.
        launches: how many of them were counted.
        seconds: of all these launches.
        share: of the time that was counted, 0 to 1.
        counters: of the longest launch, by our names, at most :data:`MOST_COUNTERS`; what a chip cannot count is missing.
        limiter: what keeps more blocks off a multiprocessor: a key of :data:`LIMITS`; "" if unknown.
    """

    name: str
    launches: int
    seconds: float
    share: float
    counters: dict[str, float]
    limiter: str


def parse(text: str, most_launches: int) -> tuple[Launch, ...]:
    """Reads what ``ncu --csv --page raw`` wrote: a row of names, a row of units, a row per launch.

    Raises:
        ValueError: it has another form; the message says which rule it broke, and repeats nothing of the text.
    """
    if len(text) > MOST_TEXT:
        raise ValueError("it is too long")
    # ncu's own messages begin with ==; rows are quoted throughout.
    lines = [line for line in text.replace("\r\n", "\n").split("\n") if line.startswith('"')]
    try:
        rows = list(csv.reader(lines, strict=True))
    except csv.Error:
        raise ValueError("it is no CSV") from None
    if len(rows) < 2:
        raise ValueError("it has no row of names and units")
    names, units, *launches = rows
    if names[:1] != ["ID"] or "Kernel Name" not in names or len(names) > _MOST_COLUMNS:
        raise ValueError("its first row does not name ncu's columns")
    if len(set(names)) != len(names):
        raise ValueError("a column appears twice")
    if any(len(row) != len(names) for row in rows):
        raise ValueError("a row has more or fewer cells than there are columns")
    if units[0]:
        raise ValueError("it has no row of units")
    if len(launches) > most_launches:
        raise ValueError("it has more launches than were asked for")
    scales = {at: _scale(name, units[at]) for at, name in enumerate(names) if name in ASKED}
    return tuple(
        Launch(
            clean(row[names.index("Kernel Name")], _MOST_NAME),
            {
                names[at]: _bounded(names[at], value * scale)
                for at, scale in scales.items()
                if (value := _number(row[at])) is not None
            },
        )
        for row in launches
    )


def _scale(name: str, unit: str) -> float:
    if name == PLAIN["duration_s"]:
        known: Mapping[str, float] = _SECONDS
    elif name == PLAIN["shared_bytes_per_block"]:
        known = _BYTES
    elif "pct" in name:
        known = {"%": 1.0, "": 1.0}
    else:
        return 1.0
    if unit not in known:
        raise ValueError(f"{name} has an unknown unit")
    return known[unit]


def _number(cell: str) -> float | None:
    cell = cell.strip()
    if _ABSENT.fullmatch(cell):
        return None
    if len(cell) > _MOST_DIGITS or not _NUMBER.fullmatch(cell):
        raise ValueError("a value is no plain number")
    return float(cell.replace(",", ""))


def _bounded(name: str, value: float) -> float:
    if value > _MOST_VALUE:
        raise ValueError("a value is too large")
    # Metrics of several passes may come out a little above what is possible.
    return min(value, 100.0) if "pct" in name else value


def curate(launches: Sequence[Launch]) -> tuple[Counted, ...]:
    """The kernels that took most of the time, with what is kept of each; launches without a duration are left out."""
    duration = PLAIN["duration_s"]
    timed = [launch for launch in launches if launch.values.get(duration)]
    total_s = sum(launch.values[duration] for launch in timed)
    groups: dict[str, list[Launch]] = {}
    for launch in timed:
        groups.setdefault(launch.name, []).append(launch)
    found = []
    for name, group in groups.items():
        seconds = sum(launch.values[duration] for launch in group)
        longest = max(group, key=lambda launch: launch.values[duration])
        counters, limiter = _counters(longest.values)
        found.append(Counted(name, len(group), seconds, round(seconds / total_s, 4), counters, limiter))
    return tuple(sorted(found, key=lambda kernel: -kernel.seconds)[:_SHOWN_KERNELS])


def _counters(values: Mapping[str, float]) -> tuple[dict[str, float], str]:
    kept = {name: values[metric] for name, metric in PLAIN.items() if metric in values}
    for name, (part, whole) in RATIOS.items():
        if part in values and values.get(whole):
            kept[name] = min(values[part] / values[whole], _MOST_VALUE)
    # Zero blocks could not have been launched: that limit was not computed.
    limits = {what: values[metric] for what, metric in LIMITS.items() if values.get(metric)}
    limiter = min(limits, key=lambda what: limits[what], default="")
    if limiter:
        kept["blocks_per_sm"] = limits[limiter]
    kept |= _largest(values, PIPES, "pipe_{}_pct", _SHOWN_PIPES)
    kept |= _largest(values, STALLS, "stall_{}", _SHOWN_STALLS)
    return {name: round(value, 9 if name == "duration_s" else 3) for name, value in kept.items()}, limiter


def _largest(
    values: Mapping[str, float], metrics: Mapping[str, str], name: str, count: int
) -> dict[str, float]:
    found = {name.format(what): values[metric] for what, metric in metrics.items() if values.get(metric)}
    return dict(sorted(found.items(), key=lambda item: -item[1])[:count])
