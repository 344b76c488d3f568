"""Stores that implement `agent.store.JobStore` without a database."""
