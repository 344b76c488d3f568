"""Memory across jobs: which rewrites helped and which failed, retrieved by what a module computes.

`features` describes a module, `similarity` compares two descriptions, `entries` defines the entries and the interface of
their storage, and `lessons` makes entries from a finished job.
"""
