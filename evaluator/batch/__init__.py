"""Judges many candidates: a manifest in, one JSON line per verdict out, resumable."""
