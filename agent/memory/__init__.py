"""Memory across jobs: which rewrites paid and which failed, found again by what a module computes.

`features` describes a module, `similarity` compares two descriptions, `entries` is what is remembered and the interface of
whatever keeps it, `lessons` makes entries out of a finished job, and `recall` fetches them once per job.
"""
