"""Commands of `python -m evaluator` that `kernelwright` offers too."""
