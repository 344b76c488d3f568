"""`python -m evaluator`."""

from __future__ import annotations

from evaluator.cli import app

if __name__ == "__main__":
    app()
