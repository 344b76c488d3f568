"""Keeps a delivered bundle true: re-measures it after a change of the platform, and splices it into its user's model."""
