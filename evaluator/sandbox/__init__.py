"""Isolation of untrusted processes: namespaces, Landlock, seccomp and resource limits, using only the standard
library.

It does *not* cover bugs of the kernel and of the GPU driver, timing side channels between processes that share a
CPU, or a user who runs the service as root on a machine whose kernel has none of these features (then nothing
untrusted runs at all, see :class:`evaluator.referee.processes.fleet.Fleet`).
"""
