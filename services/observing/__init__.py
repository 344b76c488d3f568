"""Observability: logs with request and job ids, Prometheus metrics, and workers by capability."""
