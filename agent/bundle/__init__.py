"""The bundle: optimized.py, its kernels as files, the evidence, a report and a script that rechecks them."""
