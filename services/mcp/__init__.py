"""`kernelwright mcp`: what a coding agent may use of Kernelwright, over the Model Context Protocol.

server.py    the tools, and what each says of itself
local.py     lint, profile and evaluate on this machine: the commands of the same names, as child processes
remote.py    submit, status and leaderboard at a service, through `services.client`
files.py     which files may be read: those below one folder
bounded.py   what a tool gives back: strangers' text as data, of bounded size, without our keys
"""
