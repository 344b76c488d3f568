"""The HTTP API: routes read requests, ask `services.jobs`, and show views. No route touches a candidate's code."""
