"""The dashboard: server-rendered pages over what the service has stored.

Pages need no script to be useful: forms are plain POSTs, charts are SVG drawn here, and a running
job reloads itself. With script, ``static/live.js`` listens to the job's events and swaps fragments.

Everything shown here may come from an untrusted module, a candidate or a language model. Templates
escape by default, and the Content-Security-Policy refuses inline script and any other host.
"""
