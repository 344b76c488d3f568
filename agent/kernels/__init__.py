"""Kernels written by people that replace operations of the compiler's code: products of matrices and convolutions on a GPU."""
