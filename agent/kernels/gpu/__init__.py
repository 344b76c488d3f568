"""Kernels in Triton, each file text that a candidate takes over; `agent.kernels.writing` puts them together."""
