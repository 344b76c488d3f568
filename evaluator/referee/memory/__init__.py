"""Divides a GPU's memory, and runs the referee's own kernels there."""
