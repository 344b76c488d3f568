"""One module per group of paths."""
