"""Is an output right? Comparison with a float64 oracle, with a tolerance that follows the reference's own error."""
