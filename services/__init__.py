"""The service around the referee and the agent: HTTP API, queue, database, dashboard, command line.

Nothing in this package imports, executes or unpickles a task or a candidate: they are text here, and only the
referee's sandbox runs them.
"""
