"""Is an output right? Compares with a float64 oracle, with a tolerance based on the reference's own error."""
