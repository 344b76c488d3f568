"""Many candidates at once: a manifest in, one JSON line per verdict out, resumable."""
