"""Tasks that a user imported: found in a checkout, linted, registered in the data folder, reported."""
