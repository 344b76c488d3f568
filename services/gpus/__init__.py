"""Readings of this machine's GPUs, and the rules that take a GPU out of service."""
