"""The bottleneck of a call: from interventions where one tells causes apart, from measured ceilings where none does.

On a GPU, replaying a call as a graph removes launches and nothing else, so what a replay saves is what launching cost. A call
that idles the device while its host waits for a value is bound by that wait: it keeps launches from running ahead, and no
graph can hold it. What is left is busy, and each operation's time goes to memory or to arithmetic, whichever would take
longer at this device's own ceilings. On a CPU the batch is halved and doubled: the time that does not follow is overhead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from evaluator.profiling.bottleneck import THREE_FLOAT16, Diagnosis, Part
from evaluator.profiling.measured import Measured, Operation
from evaluator.profiling.sentences import sentences

#: Share of a call in which a GPU must idle for the host to be the cause.
_IDLE = 0.3
#: Of a replayed graph's time: what its nodes would take if they were empty.
_NODES = 0.5
_OVERHEAD = 0.5
#: Elementwise rates were measured through the cache, so they are no better than it.
_CLEARLY = 1.2
#: An operation of a CPU that takes so many times what an empty one takes, and far more than its ceilings say, is overhead.
_EMPTY, _USEFUL = 10.0, 0.3
_SHOWN = 12
#: Half the bytes: the replay's time that memory explains, and the one that tensor cores do.
_HALVED = (0.4, 0.8)


class Roof:
    """The measured ceilings as times.

    Args:
        rates: by name; see :mod:`evaluator.profiling.ceilings`.
    """

    def __init__(self, rates: Mapping[str, Any]) -> None:
        self._rates = rates
        caches = [rates[f"l{level}_bytes_per_s"] for level in (4, 3, 2) if rates.get(f"l{level}_bytes_per_s")]
        # Reading alone can be faster than copying, so the report must not call more impossible.
        self._dram = max(float(rates["dram_bytes_per_s"]), float(rates.get("dram_read_bytes_per_s") or 0.0))
        # A shared cache can be slower than its share of memory where few cores run.
        self._cache = max(self._dram, float(caches[0]) if caches else 0.0)
        self._cache_bytes = int(rates["cache_bytes"])
        self._vector = float(rates.get("vector_flops_per_s") or rates["float32_flops_per_s"])
        # Three float16 products have float32's accuracy, so the task allows them wherever it allows float32.
        split = float(rates.get("float16_flops_per_s") or 0.0) / 3
        plain = float(rates["float32_flops_per_s"])
        self._float32 = (THREE_FLOAT16, split) if split > plain else ("float32", plain)
        self.operation_s = float(rates["operation_s"])
        self.node_s = float(rates.get("graph_node_s") or 0.0)

    def memory_s(self, moved_bytes: int) -> float:
        """Seconds to move so much: through the last cache if half of it holds all, else through memory."""
        return moved_bytes / (self._cache if moved_bytes < self._cache_bytes / 2 else self._dram)

    def compute_s(self, row: Operation) -> float:
        """Seconds of an operation's arithmetic: calls together."""
        if row.flops:
            return row.flops / self._peak(row.kind)[1]
        return row.elements / (float(self._rates["exp_per_s"]) if row.transcendental else self._vector)

    def used(self, operations: Sequence[Operation]) -> dict[str, float]:
        """The ceilings that stand behind these times: memory, the last cache, and arithmetic of each kind that occurs."""
        found = {"memory_bytes_per_s": self._dram, "cache_bytes_per_s": self._cache}
        for kind in sorted({row.kind for row in operations if row.flops}):
            name, peak = self._peak(kind)
            found[f"{name}_flops_per_s"] = peak
        return {**found, "vector_flops_per_s": self._vector}

    def _peak(self, kind: str) -> tuple[str, float]:
        """Name and operations per second of products of a type; of float32 where the type's was not measured."""
        if kind == "float32":
            return self._float32
        known = self._rates.get(f"{kind}_flops_per_s")
        return (kind, float(known)) if known else ("float32", float(self._rates["float32_flops_per_s"]))

    def fused_s(self, operations: Sequence[Operation], call_bytes: int) -> float:
        """Seconds to move what a call takes and gives (``call_bytes``), or what its operations move if that is less."""
        return self.memory_s(min(call_bytes, sum(row.moved_bytes for row in operations) or call_bytes))

    def least_s(self, operations: Sequence[Operation], call_bytes: int) -> float:
        """Seconds of a call with everything fused: its bytes or its products, whichever takes longer."""
        products_s = sum(self.compute_s(row) for row in operations if row.flops)
        return max(self.fused_s(operations, call_bytes), products_s, 1e-9)

    def bound(self, row: Operation) -> str:
        """``memory`` or ``compute``, whichever takes longer."""
        each = row.moved_bytes // max(row.calls, 1)
        slack = 1.0 if row.flops else _CLEARLY
        return "compute" if self.compute_s(row) > slack * row.calls * self.memory_s(each) else "memory"


def diagnose(seen: Measured, rates: Mapping[str, Any], *, gpu: bool) -> Diagnosis:
    """What holds a call back.

    Args:
        seen: of a disposable process, validated.
        rates: this device's measured ceilings.
        gpu: whether it ran on one.
    """
    roof = Roof(rates)
    kernels_s = sum(seconds for _, seconds, _ in seen.kernels)
    device_s = seen.steady_s if not gpu else min(seen.steady_s, seen.replay_s or kernels_s)
    shares = _shares(seen, roof)
    if gpu:
        label, share = _label_gpu(seen, roof, device_s, shares)
    else:
        overhead = _overhead(seen, roof)
        label, share = ("launch", overhead) if overhead >= _OVERHEAD else _busy(shares)
    moved_s = sum(row.calls * roof.memory_s(row.moved_bytes // max(row.calls, 1)) for row in seen.operations)
    call_bytes = seen.input_bytes + seen.state_bytes + seen.output_bytes
    fused_s = roof.fused_s(seen.operations, call_bytes)
    least_s = roof.least_s(seen.operations, call_bytes)
    confirmed = _confirmed(seen, label, gpu=gpu)
    found = Diagnosis(
        label=label,
        share=round(share, 4),
        confirmed=confirmed,
        steady_s=seen.steady_s,
        device_s=device_s,
        least_s=least_s,
        roofline=round(min(least_s / seen.steady_s, 1.0), 4),
        fusion_gain=round(max(moved_s / max(fused_s, 1e-12), 1.0), 3),
        sentences=(),
        kernels=_kernels(seen),
        modules=_parts(seen, roof, lambda row: row.module or "(the model itself)"),
        lines=_parts(seen, roof, lambda row: f"line {row.line}" if row.line else "(no line: backward)"),
        waits=seen.waits,
        transfers=seen.transfers,
        breaks=seen.breaks,
        graphs=seen.graphs,
        ceilings=roof.used(seen.operations),
    )
    return Diagnosis(**{**vars(found), "sentences": sentences(found, seen, gpu=gpu)})


def _label_gpu(seen: Measured, roof: Roof, device_s: float, shares: dict[str, float]) -> tuple[str, float]:
    idle = 1 - device_s / seen.steady_s
    if idle >= _IDLE:
        return ("synchronization" if seen.waits else "launch"), idle
    launched = sum(calls for _, _, calls in seen.kernels)
    if seen.replay_s and launched * roof.node_s >= _NODES * seen.replay_s:
        return "launch", min(launched * roof.node_s / seen.replay_s, 1.0)
    return _busy(shares)


def _busy(shares: dict[str, float]) -> tuple[str, float]:
    label = max(shares, key=lambda name: shares[name])
    return label, shares[label]


def _shares(seen: Measured, roof: Roof) -> dict[str, float]:
    """Which part of the operations' time goes to each of memory and arithmetic."""
    spent = {"memory": 0.0, "compute": 0.0}
    for row in seen.operations:
        if row.moved_bytes or row.flops:
            spent[roof.bound(row)] += row.seconds
    total = sum(spent.values()) or 1.0
    return {name: seconds / total for name, seconds in spent.items()}


def fixed_share(seen: Measured) -> float | None:
    """The part of the time that does not follow the batch, from 0 to 1: 1 where half the work takes as long."""
    shares = []
    for size in seen.sizes:
        factor = size.bytes_factor
        if abs(factor - 1) > 0.1:
            share = (size.steady_s / seen.steady_s - factor) / (1 - factor)
            shares.append(min(max(share, 0.0), 1.0))
    return sum(shares) / len(shares) if shares else None


def _overhead(seen: Measured, roof: Roof) -> float:
    """On a CPU: the part of the time that is torch's own work per operation."""
    count = max(seen.operation_count, 1)
    counted = min(count * roof.operation_s / seen.steady_s, 1.0)
    useful_s = sum(
        max(roof.compute_s(row), row.calls * roof.memory_s(row.moved_bytes // max(row.calls, 1)))
        for row in seen.operations
    )
    useful = min(useful_s / seen.steady_s, 1.0)
    if seen.steady_s < count * _EMPTY * roof.operation_s and useful < _USEFUL:
        return 1 - useful
    fixed = fixed_share(seen)
    return counted if fixed is None else (counted + fixed) / 2


def _confirmed(seen: Measured, label: str, *, gpu: bool) -> bool | None:
    """Whether the experiment that belongs to a label agrees."""
    if not gpu:
        fixed = fixed_share(seen)
        return None if fixed is None else (fixed >= _OVERHEAD) == (label == "launch")
    if label == "synchronization":
        return seen.replay_s is None
    if label == "launch":
        return None if seen.replay_s is None else seen.replay_s < seen.steady_s
    if seen.narrow_s is None or seen.replay_s is None:
        return None
    ratio = seen.narrow_s / seen.replay_s
    return _HALVED[0] <= ratio <= _HALVED[1] if label == "memory" else ratio < _HALVED[1]


def _kernels(seen: Measured) -> tuple[Part, ...]:
    total = sum(seconds for _, seconds, _ in seen.kernels) or 1.0
    return tuple(
        Part(name, seconds, round(seconds / total, 4), calls)
        for name, seconds, calls in seen.kernels[:_SHOWN]
    )


def _parts(seen: Measured, roof: Roof, key: Callable[[Operation], str]) -> tuple[Part, ...]:
    """The operations' time by a name, with what most of each part's time goes to."""
    seconds: dict[str, dict[str, float]] = {}
    calls: dict[str, int] = {}
    for row in seen.operations:
        name = key(row)
        spent = seconds.setdefault(name, {"memory": 0.0, "compute": 0.0})
        spent[roof.bound(row)] += row.seconds
        calls[name] = calls.get(name, 0) + row.calls
    total = sum(sum(spent.values()) for spent in seconds.values()) or 1.0
    parts = [
        Part(
            name,
            sum(spent.values()),
            round(sum(spent.values()) / total, 4),
            calls[name],
            max(spent, key=lambda word, spent=spent: spent[word]),  # type: ignore[misc]
        )
        for name, spent in seconds.items()
    ]
    return tuple(sorted(parts, key=lambda part: -part.seconds)[:_SHOWN])
