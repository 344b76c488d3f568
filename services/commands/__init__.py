"""The commands of `kernelwright`, one module per command or family; `services.cli` registers them.

Modules import heavy dependencies inside functions to keep `kernelwright --help` fast.
"""
