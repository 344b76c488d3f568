"""The HTTP API: routes parse requests, call `services.jobs`, and return views. No route runs a candidate's code."""
