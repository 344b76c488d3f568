"""What the C++ kernels for tasks share; its text stands in each of their candidate files."""

import ctypes

from torch.utils.cpp_extension import load_inline


def library_of(name: str, source: str) -> ctypes.CDLL:
    """The library `name`, compiled for this processor."""
    path = load_inline(
        f"{name}_cpu",
        cpp_sources=source,
        is_python_module=False,
        no_implicit_headers=True,
        extra_cflags=["-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-fopenmp"],
        extra_ldflags=["-fopenmp"],
    )
    return ctypes.CDLL(path)
