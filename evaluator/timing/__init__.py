"""Time on the referee's own clock: blocks, quads, intervals."""
