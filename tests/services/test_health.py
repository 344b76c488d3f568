"""A worker takes a sick GPU out, says so wherever workers are told of, and comes back: by readings that are replayed."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import select

from agent.spec import JobOutcome
from evaluator.errors import SandboxUnavailable
from services.db.models import Evaluation, Job, Worker
from services.gpus.reading import NvmlGpu, Reading
from services.gpus.rules import KNOWN_KERNEL, RULES, findings
from services.jobs import turns
from services.settings import Settings
from services.worker import health
from services.worker.health import DeviceHealth, try_kernel
from services.worker.presence import Presence
from services.worker.referee_queue import JobReferee, RefereeQueue
from services.worker.runner import Runner
from tests.services.databases import new_job, new_sqlite
from tests.services.keyed import Keyed
from tests.services.service import wait_until
from tests.services.test_turns import queue
from tests.services.test_workers_page import check_of

# As an H200 says it at rest: nothing counted, nothing pending, half a GiB of its driver's not counted as used.
WELL = Reading(
    0.0, uncorrected=0, remap_failed=False, remap_pending=False, recovery=0, used_bytes=0, own=False
)
GIB = 1 << 30
CAPPED = frozenset({"hw_thermal"})


def over(*changes: dict[str, Any], every_s: float = 30.0) -> list[Reading]:
    """Readings one after the other."""
    return [replace(WELL, at_s=number * every_s, **change) for number, change in enumerate(changes)]


@pytest.mark.parametrize(
    ("rule", "sick", "well"),
    [
        ("gpu_lost", over({}, {"lost": "GPU is lost"}), over({"lost": "GPU is lost"}, {})),
        ("gpu_ecc", over({"uncorrected": 3}, {"uncorrected": 5}), over({"uncorrected": 3}, {"uncorrected": 3}, {"uncorrected": 0})),
        ("gpu_remap", over({"remap_failed": True}), over({"remap_pending": True}, {})),
        ("gpu_remap", over({"remap_pending": True}), over({"remap_failed": None, "remap_pending": None})),
        ("gpu_recovery", over({"recovery": 1}), over({"recovery": None})),
        ("gpu_xid", over({"xids": (31, 79)}, {}), over({"xids": (13, 31, 43, 45)})),
        ("gpu_slowdown", over(*[{"slowdowns": CAPPED}] * 6), over(*[{"slowdowns": CAPPED}] * 3, {}, *[{"slowdowns": CAPPED}] * 3)),
        ("gpu_slowdown", over(*[{"slowdowns": CAPPED}] * 6), over(*[{"slowdowns": CAPPED}] * 4)),
        ("gpu_memory", over(*[{"used_bytes": 9 * GIB}] * 6), over(*[{"used_bytes": 9 * GIB, "held_bytes": 8 * GIB, "own": True}] * 6)),
        ("gpu_memory", over(*[{"used_bytes": 9 * GIB, "held_bytes": GIB, "own": True}] * 6), over(*[{"used_bytes": 9 * GIB, "own": True}] * 6)),
        ("gpu_memory", over(*[{"used_bytes": 9 * GIB}] * 6), over(*[{"used_bytes": 9 * GIB}] * 2, {}, *[{"used_bytes": 9 * GIB}] * 3)),
    ],
)  # fmt: skip
def test_each_rule_objects_to_what_it_is_for_and_to_nothing_else(
    rule: str, sick: list[Reading], well: list[Reading]
) -> None:
    assert [one.rule for one in findings(sick)] == [rule]
    assert findings(well) == []


def test_every_rule_is_tried_and_what_a_card_does_not_tell_is_no_fault() -> None:
    mark = test_each_rule_objects_to_what_it_is_for_and_to_nothing_else.pytestmark[0]  # type: ignore[attr-defined]
    assert {case[0] for case in mark.args[1]} == set(RULES)
    assert findings([Reading(float(at), own=False) for at in range(0, 600, 30)]) == []


class Replayed:
    """A GPU that says what was recorded, and the last of it for ever."""

    def __init__(self, *readings: Reading) -> None:
        self.readings = list(readings)

    def read(self, *, own: bool) -> Reading:
        return self.readings.pop(0) if len(self.readings) > 1 else self.readings[0]


def watched(gpu: Replayed, kernel: Callable[[], str | None], idle: list[bool]) -> DeviceHealth:
    return DeviceHealth(gpu, kernel, lambda: idle[0], lambda: False)


def test_it_comes_back_when_the_readings_are_well_and_the_kernel_is_right() -> None:
    later = [replace(WELL, at_s=at) for at in (700.0, 715.0, 730.0, 745.0)]
    gpu = Replayed(WELL, replace(WELL, at_s=15.0, xids=(94,)), *later)
    answers, idle = ["a kernel with a known result gave another one", None], [True]
    gpu_health = watched(gpu, lambda: answers.pop(0), idle)
    assert (gpu_health.look(), gpu_health.problem(), gpu_health.stops()) == (False, None, False)
    assert gpu_health.look()
    assert "Xid 94" in str(gpu_health.problem())
    assert gpu_health.stops()
    idle[0] = False
    assert not gpu_health.look(), (
        "the report is old by now; but before it comes back it is tried, and the bench is in use"
    )
    idle[0] = True
    assert gpu_health.look()
    assert [one.rule for one in gpu_health.found] == [KNOWN_KERNEL]
    assert gpu_health.look()
    assert (gpu_health.problem(), answers) == (None, [])


def test_the_known_kernel_runs_now_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []
    gpu_health = watched(Replayed(WELL), lambda: tried.append(1), [True])  # type: ignore[func-returns-value]
    gpu_health.look()
    assert tried == []
    monkeypatch.setattr(health, "_TRY_EVERY_S", 0.0)
    time.sleep(0.01)
    gpu_health.look()
    assert tried == [1]


def test_a_driver_that_hangs_takes_the_gpu_out_until_it_answers_and_the_kernel_is_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers, tried = threading.Event(), []

    class Hanging(Replayed):
        def read(self, *, own: bool) -> Reading:
            assert answers.wait(30)
            return super().read(own=own)

    gpu_health = watched(Hanging(WELL), lambda: tried.append(1), [True])  # type: ignore[func-returns-value]
    monkeypatch.setattr(health, "_ANSWER_WITHIN_S", 0.05)
    looks = threading.Thread(target=gpu_health.look, daemon=True)
    looks.start()
    try:
        wait_until(gpu_health.stops, 5, lambda: "nobody noticed")
        assert "does not answer" in str(gpu_health.problem())
        assert tried == []
    finally:
        answers.set()
        looks.join()
    assert (gpu_health.problem(), tried) == (None, [1])


def test_a_look_that_fails_is_not_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Odd(Replayed):
        def read(self, *, own: bool) -> Reading:
            if len(self.readings) > 1:
                self.readings.pop(0)
                raise RuntimeError("a driver nobody has seen")
            return super().read(own=own)

    base = new_sqlite(tmp_path)
    referees = RefereeQueue("cuda", tmp_path / "bench", "landlock")
    presence = Presence(base, referees, "host/1/2")
    presence._check = {"device": {"gpu_uuid": "GPU-1"}}
    gpu = Odd(WELL, replace(WELL, xids=(79,)))
    monkeypatch.setattr("services.worker.presence.NvmlGpu", lambda uuid: gpu)
    monkeypatch.setattr(health, "LOOK_EVERY_S", 0.01)
    watching = threading.Thread(target=presence._watch_device, daemon=True)
    watching.start()
    try:
        wait_until(presence.is_sick, 5, lambda: "the watch has ended")
    finally:
        presence._stopped.set()
        watching.join()
        referees.close()
        base.close()


@pytest.mark.parametrize(
    ("exit_code", "said"),
    [(0, None), (3, "gave another one"), (1, "did not end well (error): RuntimeError: CUDA error")],
)
def test_what_the_known_kernel_says(exit_code: int, said: str | None) -> None:
    ran = SimpleNamespace(exit_code=exit_code, status="error", stdout="Traceback\nRuntimeError: CUDA error\n")
    judge: Any = SimpleNamespace(run_tool=lambda *_, **__: ran)
    found = try_kernel(judge)
    assert found is None if said is None else said in str(found)


def test_its_arithmetic_is_right_and_notices_what_is_wrong(tmp_path: Path) -> None:
    """On the CPU, since not every machine has a GPU: the program's own answers, and one that is a bit off."""
    import torch

    program = (
        health._PROGRAM.replace(".cuda()", "")
        .replace('device="cuda"', 'device="cpu"')
        .replace("1 << 25", "1 << 15")
    )
    program = program.replace("(1 << 24) * ((1 << 15) - 1)", "(1 << 14) * ((1 << 15) - 1)")
    for text, code in ((program, 0), (program.replace("got = ", "got = 1 + "), 3)):
        with pytest.raises(SystemExit) as ended:
            exec(compile(text, "known", "exec"), {"__name__": "__main__"})
        assert ended.value.code == code
    assert torch is sys.modules["torch"]


def test_a_sick_gpu_is_told_of_on_the_page_in_readyz_and_in_metrics(tmp_path: Path) -> None:
    keyed = Keyed(tmp_path)
    referees = RefereeQueue("cuda", tmp_path / "bench", "landlock")
    presence = Presence(keyed.base, referees, "host/1/2")
    presence._check = check_of()
    presence._checked.set()
    gpu = Replayed(replace(WELL, xids=(79,)), replace(WELL, at_s=900.0))
    presence._health = watched(gpu, lambda: None, [True])
    try:
        client = keyed.client()
        presence._write()
        assert client.get("/readyz").status_code == 200
        presence._health.look()
        presence._write()
        problem = presence.problem()
        assert "fell off the bus" in str(problem)
        assert presence.is_sick()
        ready = client.get("/readyz")
        assert ready.status_code == 503
        assert ready.json()["checks"]["sandbox"]["problem"] == "no worker's device is well"
        assert "fell off the bus" in ready.text
        page = client.get("/ui/workers").text
        assert "fell off the bus" in page
        assert "refusing" in page
        metrics = client.get("/metrics").text
        assert 'kernelwright_device_unhealthy{device="cuda",rule="gpu_xid"} 1.0' in metrics
        assert 'state="refusing",type="NVIDIA H200"} 1.0' in metrics
        presence._health.look()
        presence._write()
        assert (presence.problem(), presence.is_sick()) == (None, False)
        assert client.get("/readyz").status_code == 200
        assert "kernelwright_device_unhealthy{" not in client.get("/metrics").text
        with keyed.base.write() as session:
            row = session.scalars(select(Worker)).one()
            row.self_check = check_of(health=[{"rule": "<script>"}, "x", {"rule": ["gpu_xid"]}])
        assert "kernelwright_device_unhealthy{" not in client.get("/metrics").text, "a row is only a claim"
    finally:
        referees.close()
        keyed.base.close()


@pytest.mark.parametrize("well_again", [False, True])
@pytest.mark.parametrize("ends", ["a fault", "cancelled"])
def test_what_runs_on_a_gpu_that_falls_sick_is_given_back_and_counts_as_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, well_again: bool, ends: str
) -> None:
    base = new_sqlite(tmp_path)
    job_id = new_job(base, tmp_path)
    referees = RefereeQueue("cpu", tmp_path, "landlock")
    sick = [False]

    def falls_sick(self: JobReferee, work: Any) -> Any:
        sick[0] = True
        while not self.stopped:
            time.sleep(0.01)
        sick[0] = not well_again
        raise RuntimeError("its referee was killed")

    def as_told_to_stop(_spec: Any, _store: Any, judge: Any, *_: Any) -> JobOutcome:
        with suppress(RuntimeError):
            judge.self_check()
        return JobOutcome("cancelled", None, "as a job ends that asked whether it should stop")

    if ends == "cancelled":
        monkeypatch.setattr("services.worker.runner.run_job", as_told_to_stop)
    referees.call = lambda judge, work: falls_sick(judge, work)  # type: ignore[method-assign]
    settings = Settings(data_dir=tmp_path)
    runner = Runner(settings, base, referees, "one", lambda: None, lambda: sick[0])
    assert runner.work_on_next(Job)
    with base.read() as session:
        job = session.get_one(Job, job_id)
        assert (job.state, job.attempt, job.stalled_attempts, job.lease_owner) == ("queued", 1, 0, None)
        assert (job.faults, job.reason) == (0, None)
    assert turns.take(base, Job, "cpu", "another", 60.0, 3) is not None
    referees.close()
    base.close()


def test_what_was_taken_as_the_gpu_fell_sick_waits_for_others(tmp_path: Path) -> None:
    """Between a slot's own question and the first step: a row of a worker that refuses stays queued."""
    base = new_sqlite(tmp_path)
    job_id = new_job(base, tmp_path)
    [evaluation_id] = queue(base, None, device="cpu")
    referees = RefereeQueue("cpu", tmp_path, "landlock")
    runner = Runner(Settings(data_dir=tmp_path), base, referees, "one", lambda: "Xid 79")
    for model in (Job, Evaluation):
        assert runner.work_on_next(model)
    with base.read() as session:
        for row in (session.get_one(Job, job_id), session.get_one(Evaluation, evaluation_id)):
            assert (row.state, row.stalled_attempts, row.faults, row.lease_owner) == ("queued", 0, 0, None)
    referees.close()
    base.close()


@pytest.mark.parametrize("model", [Job, Evaluation])
def test_a_sandbox_that_ends_before_its_worker_does_fails_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: Any
) -> None:
    base = new_sqlite(tmp_path)
    row_id = new_job(base, tmp_path) if model is Job else queue(base, None)[0]
    referees = RefereeQueue("cpu", tmp_path, "landlock")
    runner = Runner(Settings(data_dir=tmp_path), base, referees, "one", lambda: None)

    def stopped(*_: Any, **__: Any) -> Any:
        runner.stopping.set()
        raise SandboxUnavailable("the fork server is gone")

    monkeypatch.setattr("services.worker.runner.run_job", stopped)
    monkeypatch.setattr(JobReferee, "evaluate", stopped)
    assert runner.work_on_next(model)
    with base.read() as session:
        assert session.get_one(model, row_id).state == "queued"
    referees.close()
    base.close()


class _Error(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(f"NVML error {value}")
        self.value = value


def fake_nvml(**answers: Any) -> Any:
    """NVML as far as it is asked; a function without an answer is one that this card does not support."""

    def unsupported(*_: Any) -> Any:
        raise _Error(3)

    names = (
        "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetRemappedRows", "nvmlDeviceGetMemoryInfo",
        "nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetFieldValues",
        "nvmlEventSetCreate", "nvmlDeviceRegisterEvents", "nvmlEventSetWait",
    )  # fmt: skip
    numbers = {
        "NVML_ERROR_GPU_IS_LOST": 15, "NVML_ERROR_UNKNOWN": 999, "NVML_ERROR_NOT_FOUND": 6, "NVML_SUCCESS": 0,
        "NVML_MEMORY_ERROR_TYPE_UNCORRECTED": 1, "NVML_VOLATILE_ECC": 0, "nvmlMemory_v2": 2,
        "nvmlEventTypeXidCriticalError": 8, "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION": 275,
    }  # fmt: skip
    found: dict[str, Any] = {"NVMLError": _Error, "nvmlInit": lambda: None, **numbers}
    found |= {"nvmlDeviceGetHandleByUUID": lambda uuid: uuid} | dict.fromkeys(names, unsupported) | answers
    return SimpleNamespace(**found)


def test_nvml_is_read_and_a_card_that_tells_little_is_read_too(monkeypatch: pytest.MonkeyPatch) -> None:
    xids = [79, 31]

    def next_xid(*_: Any) -> Any:
        if not xids:
            raise _Error(10)
        return SimpleNamespace(eventData=xids.pop(0))

    told = fake_nvml(
        nvmlDeviceGetCurrentClocksEventReasons=lambda _: 0x4 | 0x40,
        nvmlDeviceGetRemappedRows=lambda _: (0, 1, 1, 0),
        nvmlDeviceGetMemoryInfo=lambda _, version: SimpleNamespace(used=5 * GIB),
        nvmlDeviceGetComputeRunningProcesses=lambda _: [SimpleNamespace(usedGpuMemory=GIB), SimpleNamespace(usedGpuMemory=None)],
        nvmlDeviceGetTotalEccErrors=lambda _, kind, counter: 7 if (kind, counter) == (1, 0) else 99,
        nvmlDeviceGetFieldValues=lambda _, fields: [SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=2))],
        nvmlEventSetCreate=lambda: "set",
        nvmlDeviceRegisterEvents=lambda *_: None,
        nvmlEventSetWait=next_xid,
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "pynvml", told)
    reading = replace(NvmlGpu("GPU-1").read(own=True), at_s=0.0)
    assert reading == Reading(
        0.0, None, 7, False, True, 2, frozenset({"hw_thermal"}), (79, 31), 5 * GIB, GIB, own=True
    )
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml())
    assert replace(NvmlGpu("GPU-1").read(own=False), at_s=0.0) == Reading(0.0, own=False)

    def lost(_: Any) -> Any:
        raise _Error(15)

    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(nvmlDeviceGetCurrentClocksEventReasons=lost))
    assert NvmlGpu("GPU-1").read(own=False).lost == "NVML error 15"
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(nvmlDeviceGetHandleByUUID=lost))
    with pytest.raises(OSError, match="does not know"):
        NvmlGpu("GPU-1")


@pytest.mark.gpu
def test_a_real_gpu_is_read_and_well() -> None:
    import pynvml

    pynvml.nvmlInit()
    gpu = NvmlGpu(str(pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(0))))
    reading = gpu.read(own=True)
    assert reading.lost is None
    assert reading.used_bytes is not None
    assert [one.rule for one in findings([reading])] == []
