"""The worker: takes rows by lease, drives the agent and the referee, never imports torch or untrusted code."""
