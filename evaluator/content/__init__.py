"""What inputs and weights contain: fresh for every call, drawn by the referee from the operating system's randomness."""
