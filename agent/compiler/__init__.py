"""What the compiler has to offer: torch.compile in its modes, a CUDA graph, and the code that Inductor generates."""
