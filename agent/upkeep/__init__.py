"""Maintains a delivered bundle: re-measures it after a platform change, and splices it into the user's model."""
