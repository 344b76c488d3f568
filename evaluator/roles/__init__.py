"""Processes that run untrusted code: fork servers, the runner inside each child, and their message frames."""
