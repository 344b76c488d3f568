"""Upgrades a database to the newest schema. Concurrent processes may call it: migrations take a lock."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config

from services.db.session import Database

_HERE = Path(__file__).resolve().parent


def alembic_config(database: Database | None = None) -> Config:
    """Return Alembic's configuration, bound to `database` if given."""
    config = Config(str(_HERE / "alembic.ini"))
    config.set_main_option("script_location", str(_HERE / "migrations"))
    config.attributes["database"] = database
    return config


def upgrade(database: Database) -> None:
    """Run every migration that `database` lacks."""
    command.upgrade(alembic_config(database), "head")
