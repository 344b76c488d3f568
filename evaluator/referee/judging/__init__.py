"""From a submission to a verdict."""
