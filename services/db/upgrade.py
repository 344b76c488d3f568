"""Upgrades a database to the newest schema. Concurrent processes may call it: migrations take a lock."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config

from services.db.session import Database, database

_HERE = Path(__file__).resolve().parent


def alembic_config(bound: Database) -> Config:
    """Return Alembic's configuration, bound to a database."""
    config = Config(str(_HERE / "alembic.ini"))
    config.set_main_option("script_location", str(_HERE / "migrations"))
    config.attributes["database"] = bound
    return config


def upgrade(outdated: Database) -> None:
    """Run every migration that a database lacks."""
    command.upgrade(alembic_config(outdated), "head")


def newest(url: str) -> Database:
    """Return the process-wide database of a URL, with the newest schema."""
    opened = database(url)
    upgrade(opened)
    return opened
