"""Whether a candidate's results are right, and stay right."""
