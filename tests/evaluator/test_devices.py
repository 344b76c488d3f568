"""Which device is used where nobody names one."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from typing import get_args

import pynvml
import pytest

from evaluator import devices
from services.jobs.requests import Device
from services.settings import Settings


def _machine(monkeypatch: pytest.MonkeyPatch, gpus: int | None, torch: str | None) -> None:
    """One with so many GPUs (None: no driver) and this version of torch (None: without)."""

    def start() -> None:
        if gpus is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    def version(name: str) -> str:
        if torch is None:
            raise PackageNotFoundError(name)
        return torch

    monkeypatch.setattr(pynvml, "nvmlInit", start)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: gpus)
    monkeypatch.setattr("evaluator.devices.cuda.nvml.version", version)
    monkeypatch.delenv("KERNELWRIGHT_DEVICE", raising=False)


@pytest.mark.parametrize(
    ("gpus", "torch", "device"),
    [(1, "2.13.0", "cuda"), (4, "2.11.0+cu130", "cuda"), (1, "2.13.0+cpu", "cpu"), (0, "2.13.0", "cpu"),
     (None, "2.13.0", "cpu"), (1, None, "cpu")],
)  # fmt: skip
def test_a_gpu_that_torch_can_use_is_used(
    monkeypatch: pytest.MonkeyPatch, gpus: int | None, torch: str | None, device: str
) -> None:
    _machine(monkeypatch, gpus, torch)
    assert devices.usual_device() == device
    assert Settings().device == device


def test_a_gpu_that_is_hidden_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    _machine(monkeypatch, 1, "2.13.0")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert devices.usual_device() == "cpu"


def test_a_device_that_is_named_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    _machine(monkeypatch, 1, "2.13.0")
    monkeypatch.setenv("KERNELWRIGHT_DEVICE", "cpu")
    assert Settings().device == "cpu"


def test_requests_accept_every_back_end() -> None:
    assert get_args(Device) == get_args(devices.DeviceName) == tuple(devices.BACKENDS)
