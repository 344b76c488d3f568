"""Watches a model during a real run and writes one of its modules as a task file.

Runs in the user's own process.
"""
