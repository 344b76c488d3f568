"""`make demo`: the whole path once, on this machine, with nothing but HTTP between this program and the service.

It starts `kernelwright serve` on a free port, POSTs a module to /optimize, follows the job, prints what was found,
re-checks the bundle in a new process, submits a candidate that cheats to show how it is caught, and stops what it
started. Exit code 0 only if all of that worked.
"""
