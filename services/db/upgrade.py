"""Bring a database to the newest schema. Safe to call from several processes at once: migrations take a lock."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config

from services.db.session import Database

_HERE = Path(__file__).resolve().parent


def alembic_config(database: Database | None = None) -> Config:
    """Alembic's configuration, bound to `database` when there is one."""
    config = Config(str(_HERE / "alembic.ini"))
    config.set_main_option("script_location", str(_HERE / "migrations"))
    config.attributes["database"] = database
    return config


def upgrade(database: Database) -> None:
    """Run every migration that `database` has not seen."""
    command.upgrade(alembic_config(database), "head")
