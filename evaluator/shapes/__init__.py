"""The space of shapes of a task and how it is sampled into splits."""
