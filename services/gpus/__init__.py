"""Readings of this machine's GPUs, and the rules by which a GPU is out of service."""
