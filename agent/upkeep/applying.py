"""Splices a bundle into the user's model: writes the splice and its test, compares results, and times whole steps.

This runs the user's model and the bundle's code as the user's program would, in separate processes but outside the
sandbox, as `profile -- PROGRAM` does. Steps before and after alternate (ABBA) on one model. Several processes repeat this,
since each process has its own constant timing bias, and the interval is computed over processes.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agent.errors import CannotApply
from agent.upkeep.reading import ReadBundle
from evaluator.counting import counted
from evaluator.devices import open_device
from evaluator.environment import measured_on
from evaluator.fingerprint import fingerprint
from evaluator.sources import sha256_of
from evaluator.timing.exclusive import DeviceLock
from evaluator.timing.statistics import pair_estimate

SCHEMA = "kernelwright.application/1"
_ROOT = Path(__file__).resolve().parent.parent.parent
_DEADLINE_S = 900.0


@dataclass(frozen=True)
class Application:
    """The result of `apply`.

    Attributes:
        folder: the folder of splice.py, test_splice.py and optimized.py.
        differences: how results differ, as sentences; empty if they match.
        runs: what optimized.py reports to run for the submodule's calls.
        before_us: median time of a whole step without the splice, in microseconds.
        after_us: median time of a whole step with the splice, in microseconds.
        speedup: before over after with its 95 % interval; None if nothing was timed.
        slower: whether the step is confidently slower by more than the margin.
        sentences: the result in words.
        environment: the platform.
        fingerprint: the platform's fingerprint.
    """

    folder: str
    differences: tuple[str, ...]
    runs: tuple[str, ...]
    before_us: float | None
    after_us: float | None
    speedup: tuple[float, float, float] | None
    slower: bool
    sentences: tuple[str, ...]
    environment: dict[str, Any]
    fingerprint: str

    @property
    def sound(self) -> bool:
        """Whether the results match and a step is not slower."""
        return not self.differences and not self.slower

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {"schema": SCHEMA, "sound": self.sound, **asdict(self)}


def apply(
    bundle: ReadBundle,
    *,
    file: Path,
    model: str,
    module: str,
    folder: Path,
    inputs: str = "get_inputs",
    arguments: Sequence[Any] | None = None,
    max_slowdown: float = 0.02,
    processes: int = 4,
    seconds: float = 3.0,
) -> Application:
    """Write the splice, check it and time it.

    Args:
        bundle: the bundle to splice in.
        file: the user's Python file.
        model: class or function in the file that makes the model without arguments.
        module: the submodule's path, as `capture` prints it; "" for the model itself.
        folder: the output folder; created if missing.
        inputs: function in the file that makes the model's arguments, a list or a dictionary.
        arguments: arguments of ModelNew's constructor, if they cannot be inferred.
        max_slowdown: largest tolerated confident loss of speed, as a share.
        processes: number of timing processes, at least 2.
        seconds: timing duration of each process.

    Raises:
        CannotApply: the model, its inputs or the submodule are missing, or the bundle does not fit.
        evaluator.errors.EvaluatorError: this machine has no such device.
    """
    environment = measured_on(open_device(bundle.device))
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in (("optimized.py", bundle.optimized), ("task.py", bundle.task.source)):
        (folder / name).write_text(text, encoding="utf-8", errors="surrogatepass")
    request = {
        "file": str(file.resolve()),
        "model": model,
        "module": module,
        "folder": str(folder.resolve()),
        "inputs": inputs,
        "arguments": None if arguments is None else list(arguments),
        "device": bundle.device,
        "dims": [shape.dims for shape in bundle.recorded],
        "task": bundle.task.source,
        "digest": sha256_of(bundle.optimized)[:12],
        "seconds": seconds,
    }
    with DeviceLock(str(environment["gpu_uuid"] or "cpu")).exclusive():
        first = _ask({**request, "first": True})
        (folder / "task.py").unlink()  # needed only to find the constructor's arguments
        reports = [first]
        if not first["differences"]:
            reports += [_ask({**request, "first": False}) for _ in range(max(processes, 2) - 1)]
    found = _concluded(folder, module, reports, max_slowdown, environment)
    (folder / "result.json").write_text(json.dumps(found.as_json(), indent=1) + "\n", encoding="utf-8")
    return found


def _ask(request: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as place:
        report = Path(place) / "report.json"
        paths = [str(_ROOT), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        try:
            ran = subprocess.run(
                [sys.executable, "-m", "agent.upkeep.apply_program"],
                input=json.dumps({**request, "report": str(report)}),
                stdout=subprocess.PIPE,  # keep the model's prints out of our JSON output
                stderr=None,
                env=environment,
                text=True,
                timeout=_DEADLINE_S,
                check=False,
            )
            answer: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))
        except subprocess.TimeoutExpired:
            raise CannotApply(f"the model took longer than {_DEADLINE_S:.0f} s") from None
        except (OSError, ValueError):
            raise CannotApply(f"the process with the model ended with status {ran.returncode}") from None
    if "error" in answer:
        raise CannotApply(answer["error"])
    return answer


def _concluded(
    folder: Path,
    module: str,
    reports: Sequence[dict[str, Any]],
    max_slowdown: float,
    environment: dict[str, Any],
) -> Application:
    first = reports[0]
    differences, runs = tuple(first["differences"]), tuple(first["runs"])
    before_us = after_us = speedup = None
    said = []
    if differences:
        said.append(f"results differ: {'; '.join(differences[:4])}")
    else:
        processes = [[math.log(before / after) for before, after in report["quads"]] for report in reports]
        speedup = pair_estimate(processes).interval
        every = [quad for report in reports for quad in report["quads"]]
        before_us = statistics.median(quad[0] for quad in every) * 1e6
        after_us = statistics.median(quad[1] for quad in every) * 1e6
        said.append(
            f"a step takes {before_us:.0f} us before and {after_us:.0f} us after: {speedup[0]:.3f}x "
            f"[{speedup[1]:.3f}, {speedup[2]:.3f}], {counted(len(every), 'quad')} in {counted(len(reports), 'process', 'processes')}"
        )
    slower = speedup is not None and speedup[2] < 1 - max_slowdown
    if slower:
        said.append(f"that is slower by more than {max_slowdown:.1%}: leave {module or 'the model'} as it is")
    elif speedup is not None and speedup[1] <= 1:
        said.append("no gain in the whole step could be shown")
    if all(word.startswith(("reference", "the submodule itself")) for word in runs):
        said.append(f"none of its calls used a kernel: {runs[0]}")
    return Application(
        str(folder), differences, runs, before_us, after_us, speedup, slower, tuple(said), environment,
        fingerprint(environment),
    )  # fmt: skip
