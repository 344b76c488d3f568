"""Memory across jobs in the database: access rules, creating entries when a job ends, and queries by jobs."""
