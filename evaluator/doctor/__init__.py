"""What this machine can judge: isolation, compilers, devices, and whether time can be measured on it."""
