"""`python -m evaluator`."""

from __future__ import annotations

from evaluator.cli import app
from evaluator.faults import guarded

if __name__ == "__main__":
    guarded(app)
