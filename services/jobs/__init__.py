"""Jobs as database rows: create, read, lease and cancel them, and store the agent's memory of a job."""
