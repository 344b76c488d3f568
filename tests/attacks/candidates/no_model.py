"""Defines something else."""

# expects: contract_violation
MODEL = 1
