"""Hand-written kernels: one Python file a kernel and device, with the C++ beside it where there is any.

In `cpu/` and `gpu/` each file defines one function, `library_` with the name of the operation. It takes tensors by role and
returns the output, or None where the kernel does not apply. `agent.library.catalog` says what each computes. In `tasks/`
lie complete candidates for tasks of the catalogue that are no formula about rows, see `agent.library.by_task`.
"""
