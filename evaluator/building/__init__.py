"""Compiling what `load_inline` is called with: the call as plain data, the compiler's program, the store of results."""
