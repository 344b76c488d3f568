"""How fast a candidate is: timed blocks, verified calls, pairs of processes."""
