"""Proposers: one file per origin, each turning a task into candidates."""
