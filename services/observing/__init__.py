"""What an operator sees: logs with the ids of request and job, metrics for Prometheus, workers by what they can judge."""
