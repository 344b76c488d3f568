"""The static dispatcher: cheap integer features of a call and a small decision tree, printed as Python and in words."""

from __future__ import annotations
