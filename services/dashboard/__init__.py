"""The dashboard: server-rendered pages over the service's stored data.

Pages work without scripts: forms are plain POSTs, charts are SVG drawn here, and the page of a running job reloads itself.
With scripts, ``static/live.js`` listens to the job's events and swaps fragments.

All content may come from an untrusted module, a candidate or a language model. Templates escape by default, and the
Content-Security-Policy blocks inline scripts and other hosts.
"""
