"""The referee's own process: JSON lines on standard input and output, driven by :mod:`evaluator.client`.

It handles one request at a time. Progress lines may precede an answer. It exits when standard input closes.
"""

from __future__ import annotations

import base64
import gc
import json
import logging
import os
import select
import signal
import sys
import threading
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evaluator.devices import open_device
from evaluator.errors import EvaluatorError
from evaluator.faults import told
from evaluator.referee.processes.fleet import Fleet
from evaluator.request import Request
from evaluator.sandbox import syscalls
from evaluator.sources import CandidateSource, TaskSource
from evaluator.timing.cores import keep_to
from evaluator.verdict import as_json

if TYPE_CHECKING:
    from evaluator.referee.judging.core import RefereeCore

_log = logging.getLogger(__name__)
#: How often an idle referee checks whether another referee needs memory. A task that is closed takes ten seconds to open again, so a short pause
#: between two candidates of a training step should not close it.
_IDLE_SECONDS = 1.0


def serve(
    device: str, work_dir: str, minimum_tier: str, client_pid: int, verdicts_dir: str, referees: int
) -> None:
    """Serves requests until the client process exits.

    ``client_pid`` is the client's process id.
    """
    # If the client is killed, no untrusted code may keep running. When this process ends, every fork server
    # ends with it.
    syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
    if client_pid and os.getppid() != client_pid:
        return  # the client was killed while this process started
    gc.disable()  # for the imports, as in its fork servers
    out = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)

    def answer(message: dict[str, Any]) -> None:
        out.write(json.dumps(message) + "\n")
        out.flush()

    try:
        # Start the fleet first: its fork servers take seconds to import torch, and this process imports its
        # own modules meanwhile.
        stores = Path(verdicts_dir).parent
        fleet = Fleet(open_device(device), Path(work_dir), minimum_tier, stores=stores, referees=referees)
        from evaluator.referee.judging.core import RefereeCore

        core = RefereeCore(device, Path(work_dir), minimum_tier, Path(verdicts_dir), referees, fleet=fleet)
        # The referee moves to the device's core only while it times.
        keep_to(core.fleet.role_cores)
    except EvaluatorError as error:
        answer({"fatal": type(error).__name__, "message": str(error)})
        return
    except Exception as error:  # noqa: BLE001 - whatever it is, the caller waits for a word
        answer(
            {"fatal": "RefereeLost", "message": f"the referee did not start: {told(error, Path(work_dir))}"}
        )
        return
    gc.freeze()
    gc.enable()
    # Warm up the compiler, once per torch version and user. It takes seconds that the first compilation would
    # otherwise spend. Compilations and timing wait for it to finish; describing a task and checking a
    # candidate do not.
    threading.Thread(target=_warm_up, args=(core.fleet,), name="warm-up", daemon=True).start()
    answer({"ready": True})
    try:
        while line := _next_line(core):
            request = json.loads(line)
            answer(_answered(core, request, answer, Path(work_dir)))
    finally:
        core.close()


def _next_line(core: RefereeCore) -> str:
    """The next request, or an empty string when there are no more.

    The client sends one request at a time, so no request can be waiting in a buffer here.
    """
    while not select.select([sys.stdin], [], [], _IDLE_SECONDS)[0]:
        try:
            core.while_idle()
        except Exception:  # noqa: BLE001 - it may fail again when there is work, and says so then
            _log.exception("could not release memory")
    return sys.stdin.readline()


def _answered(core: RefereeCore, request: dict[str, Any], answer: Any, work_dir: Path) -> dict[str, Any]:
    """The answer to a request. An internal error is returned in words and does not end the referee."""
    try:
        return {"answer": _handle(core, request, answer)}
    except EvaluatorError as error:
        return {"error": str(error)}
    except Exception as error:  # noqa: BLE001 - see above
        return {"error": told(error, work_dir)}


def _warm_up(fleet: Fleet) -> None:
    try:
        fleet.warm_up()
    except EvaluatorError as error:
        _log.warning("the compiler was not warmed up: %s", error)


def _handle(core: RefereeCore, request: dict[str, Any], answer: Any) -> Any:
    call = request["call"]
    if call == "self_check":
        return core.self_check()
    if call == "describe":
        task = TaskSource(**request["task"])
        return core.describe(task, request["deadline_s"], request["traffic"], request["space"]).as_json()
    if call == "lint":
        task = TaskSource(**request["task"])
        return core.lint(task, request["deadline_s"], fresh=request["fresh"]).as_json()
    if call == "run_tool":
        result = asdict(
            core.run_tool(
                request["program"],
                request["files"],
                deadline_s=request["deadline_s"],
                memory_bytes=request["memory_bytes"],
                device=request["device"],
                timed=request["timed"],
            )
        )
        result["outputs"] = {
            name: base64.b64encode(data).decode() for name, data in result["outputs"].items()
        }
        return result
    if call == "build":
        core.build(
            TaskSource(**request["task"]), CandidateSource(**request["candidate"]), request["deadline_s"]
        )
        return {}
    if call == "evaluate":

        def progress(stage: str, done: int, total: int, text: str) -> None:
            answer({"progress": {"stage": stage, "done": done, "total": total, "text": text}})

        return as_json(core.evaluate(Request.from_json(request["request"]), progress))
    raise EvaluatorError(f"unknown call {call!r}")
