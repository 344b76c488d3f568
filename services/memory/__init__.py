"""Memory across jobs in the database: who may read an entry, how a job's end makes entries, and how jobs ask."""
