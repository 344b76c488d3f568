"""A demonstration on a small scale: a transformer trained from nothing on a closed dialect of real candidate source.

What it may be taken to show, and what not, is in docs/rl-claims.md. It is about this dialect, not about large models.
"""
