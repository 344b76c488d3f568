"""Loops over rows in C++: their generator, what all share, and the functions of vectors."""
