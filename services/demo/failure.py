"""The one error of the demo."""

from __future__ import annotations


class DemoFailed(Exception):
    """A part of the demo did not work; `str()` is the sentence for the person at the terminal."""
