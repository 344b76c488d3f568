"""Contents of inputs and weights: fresh for every call, drawn by the referee from the operating system's
randomness.
"""
