"""Jobs as rows: making, reading, leasing, cancelling them, and the agent's memory on the database."""
