"""`kernelwright mcp`: Kernelwright's tools for coding agents, over the Model Context Protocol.

server.py    the tools and their descriptions
local.py     lint, profile and evaluate on this machine: the commands of the same names, as child processes
remote.py    submit, status and leaderboard of a service, through `services.client`
files.py     restricts file access to one folder
bounded.py   tool results: untrusted text marked as data, bounded in size, with our keys masked
"""
