"""What a script or a notebook uses of Kernelwright: `capture` watches a model at work and writes modules of it as tasks.

import kernelwright

with kernelwright.capture(model) as recording:
    serve_some_requests(model)
print(recording)
recording.write("layers.0.attention", "attention_task.py")
"""

from __future__ import annotations

from evaluator.capture.recording import ModuleCost, capture
from evaluator.capture.session import Recording
from evaluator.capture.signature import CaptureError
from evaluator.capture.writing import WrittenTask

__all__ = ["CaptureError", "ModuleCost", "Recording", "WrittenTask", "capture"]
