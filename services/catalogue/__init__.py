"""Import of user tasks: find them in a checkout, lint, register in the data folder, report."""
