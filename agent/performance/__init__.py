"""A map of throughput by size, sizes slower than their neighbors predict, and the cost of calls."""
