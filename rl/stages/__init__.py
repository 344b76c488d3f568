"""The three stages of a run, one file each, and their shared code: TRL's trainers with our checkpoints and metrics."""
