"""What a script or a notebook uses of Kernelwright.

`capture` watches a model at work and writes modules of it as tasks:

import kernelwright

with kernelwright.capture(model) as recording:
    serve_some_requests(model)
print(recording)
recording.write("layers.0.attention", "attention_task.py")

`kernelwright.client` asks a service, and needs no torch for it; so what is here is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evaluator.capture.recording import ModuleCost
    from evaluator.capture.session import Recording, capture
    from evaluator.capture.signature import CaptureError
    from evaluator.capture.writing import WrittenTask

__all__ = ["CaptureError", "ModuleCost", "Recording", "WrittenTask", "capture"]

_PLACES = {
    "CaptureError": "evaluator.capture.signature",
    "ModuleCost": "evaluator.capture.recording",
    "Recording": "evaluator.capture.session",
    "WrittenTask": "evaluator.capture.writing",
    "capture": "evaluator.capture.session",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_PLACES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
