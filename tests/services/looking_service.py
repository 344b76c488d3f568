"""A service whose streams ask for what became visible late each second, where the real one waits ten."""

from __future__ import annotations

from services.api import streams

ASK_EACH_EVERY_S = 1.0


def main() -> None:
    """A command of `kernelwright`."""
    streams.ASK_EACH_EVERY_S = ASK_EACH_EVERY_S
    from services.cli import app

    app()


if __name__ == "__main__":
    main()
