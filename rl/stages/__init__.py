"""The three stages of a run, a file each, and what they share: TRL's trainers with our checkpoints and figures."""
