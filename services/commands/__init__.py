"""What `kernelwright` can do, one module per command or family; `services.cli` puts them together.

Modules import their machinery inside the functions: `kernelwright --help` must answer at once.
"""
