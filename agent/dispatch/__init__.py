"""The static dispatcher: cheap integer features of a call, a small tree over them, and the tree as Python and in words."""

from __future__ import annotations
