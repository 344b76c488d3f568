"""The client of a service: `from kernelwright.client import Client`; see `services.client`."""

from __future__ import annotations

from services.client import *  # noqa: F403 - this module is a name for it
from services.client import __all__ as __all__
