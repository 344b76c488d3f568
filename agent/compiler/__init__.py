"""What the compiler proposes: its generated kernels as standalone sources, and torch.compile in its modes."""
