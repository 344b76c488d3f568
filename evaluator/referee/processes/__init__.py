"""The confined processes of a referee, and the files that they make."""
