"""Compiles calls of `load_inline`: the call as plain data, the compiler's program, the store of results."""
