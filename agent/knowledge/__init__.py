"""Technique notes, one file each in `notes/`, and which of them fit a diagnosis."""
