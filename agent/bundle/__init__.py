"""The bundle: optimized.py, its kernels as files, the evidence, a report and a way to check it again."""
