"""Kernels for the CPU, in C++."""
