"""The processes that run untrusted code: fork servers, the runner inside each child, and the frames they speak."""
