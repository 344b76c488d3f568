"""Task lint: refuses tasks that measure nothing, and marks doubtful ones, before any candidate is requested."""
