"""One task and one candidate: their processes, open shapes, baselines and what a call must return."""
