"""The worker: leases rows and drives the agent and the referee; never imports torch or untrusted code."""
