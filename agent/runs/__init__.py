"""Reads training runs as data, for run reports and for the dashboard, which must not import the training code."""
