"""Drives the roles: opens tasks, checks candidates, times them, words the verdict. Imports no user code and no torch."""
