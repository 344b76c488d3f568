"""The library of hand-written kernels: a known operation is recognized by its graph and never solved twice."""
