"""Finds the space of shapes of a task that declares none: which sizes vary, which are tied, what divides them."""
