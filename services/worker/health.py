"""GPU health checks: NVML readings judged by `services.gpus.rules`, and a kernel with a known result.

The kernel runs in the sandbox while the referee is idle: periodically, and before a worker that took itself out of service
returns.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable

from evaluator.errors import EvaluatorError, RefereeLost
from services.gpus.reading import Gpu, Reading
from services.gpus.rules import KEPT_S, KNOWN_KERNEL, Finding, findings
from services.worker.referee_queue import JobReferee

LOOK_EVERY_S = 15.0
_TRY_EVERY_S = 600.0
# A hung driver blocks its caller forever; a query normally takes milliseconds.
_ANSWER_WITHIN_S = 60.0
_NO_ANSWER = Finding("gpu_lost", "the GPU's driver does not answer; its machine may need a restart")
_KERNEL_WITHIN_S = 60.0
_WRONG = 3
_log = logging.getLogger(__name__)

# Small integers: every product and sum is exact in each dtype and in any order. The CPU computes the expected results.
_PROGRAM = f"""\
import sys
import torch

def numbers(rows, columns, shift):
    i, j = torch.arange(rows), torch.arange(columns)
    return ((i[:, None] * 3 + j[None, :] * 5 + shift) % 7 - 3).double()

right = True
for dtype, inner in ((torch.float32, 1024), (torch.bfloat16, 16), (torch.float16, 64)):
    a, b = numbers(1024, inner, 1), numbers(inner, 768, 2)
    got = a.cuda().to(dtype) @ b.cuda().to(dtype)
    right &= bool(torch.equal(got.double().cpu(), a @ b))
whole = torch.arange(1 << 25, device="cuda")
there_and_back = ((whole * 3 + 1) - 1) // 3
right &= bool(torch.equal(there_and_back, whole)) and int(whole.sum()) == (1 << 24) * ((1 << 25) - 1)
sys.exit(0 if right else {_WRONG})
"""


def try_kernel(judge: JobReferee) -> str | None:
    """Run the known kernel on the GPU; return the problem as a sentence, or None."""
    try:
        ran = judge.run_tool(_PROGRAM, {}, deadline_s=_KERNEL_WITHIN_S, device=True)
    except (EvaluatorError, RefereeLost) as error:
        return f"a kernel with a known result could not be run: {error}"
    if ran.exit_code == 0:
        return None
    if ran.exit_code == _WRONG:
        return "a kernel with a known result gave another one"
    last = ran.stdout.strip().splitlines()[-1:]
    return f"a kernel with a known result did not end well ({ran.status}): {' '.join(last)[:300]}"


class DeviceHealth:
    """The health of one GPU, from the checks so far.

    Args:
        gpu: the source of readings.
        kernel: see `try_kernel`.
        is_idle: whether the referee is idle.
        is_warm: whether a referee of this worker may hold GPU memory.
    """

    def __init__(
        self,
        gpu: Gpu,
        kernel: Callable[[], str | None],
        is_idle: Callable[[], bool],
        is_warm: Callable[[], bool],
    ) -> None:
        self._gpu = gpu
        self._kernel = kernel
        self._is_idle = is_idle
        self._is_warm = is_warm
        self._readings: deque[Reading] = deque()
        self._tried_at = time.monotonic()  # the self-check has just exercised the GPU
        self._asked_at: float | None = None
        self._found: tuple[Finding, ...] = ()

    @property
    def found(self) -> tuple[Finding, ...]:
        """Current findings; available even while the checking thread hangs in the driver."""
        return (_NO_ANSWER,) if self._is_late(self._asked_at) else self._found

    def look(self) -> bool:
        """Take one reading and judge it; return whether the findings changed."""
        self._asked_at = asked_at = time.monotonic()
        try:
            reading = self._gpu.read(own=self._is_warm())
        finally:
            if self._is_late(asked_at):
                self._found = (_NO_ANSWER,)  # `_tried` then runs the kernel before reuse
            self._asked_at = None
        self._readings.append(reading)
        while reading.at_s - self._readings[0].at_s > KEPT_S:
            self._readings.popleft()
        found = tuple(findings(self._readings))
        if not found:
            found = self._tried()
        changed = found != self._found
        for one in found if changed else ():
            _log.warning("the GPU is taken out: %s: %s", one.rule, one.sentence)
        if changed and not found:
            _log.info("the GPU is well again")
        self._found = found
        return changed

    def problem(self) -> str | None:
        """Why no new work may start on the GPU, or None."""
        return "; ".join(one.sentence for one in self.found) or None

    def stops(self) -> bool:
        """Whether running work must be stopped and released."""
        return any(one.stops for one in self.found)

    def _tried(self) -> tuple[Finding, ...]:
        due = time.monotonic() - self._tried_at > _TRY_EVERY_S
        if not self._found and not due:
            return ()
        if not self._is_idle():
            return self._found  # waiting for the referee would block further readings
        wrong = self._kernel()
        self._tried_at = time.monotonic()
        return (Finding(KNOWN_KERNEL, wrong),) if wrong else ()

    def _is_late(self, asked_at: float | None) -> bool:
        return asked_at is not None and time.monotonic() - asked_at > _ANSWER_WITHIN_S
