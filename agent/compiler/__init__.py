"""Compiler-based candidates: torch.compile in its modes, a CUDA graph, and the code that Inductor generates."""
