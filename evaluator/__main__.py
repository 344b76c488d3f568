"""`python -m evaluator`."""

from evaluator.cli import app

if __name__ == "__main__":
    app()
