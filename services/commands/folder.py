"""What commands that work on this machine's data begin with: its folder is closed to others before anything lies in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer
from rich.console import Console

if TYPE_CHECKING:
    from services.db.session import Database

_EXIT_USAGE = 2


def close_data_folder(say: Console) -> None:
    """See `services.data_folder.make_private`; ends the command where the folder is somebody's who leaves it open."""
    from services.data_folder import DataFolderOpen, make_private
    from services.settings import get_settings

    try:
        changed = make_private(get_settings().data_dir)
    except DataFolderOpen as error:
        say.print(f"[red]refused:[/] {error}", highlight=False, soft_wrap=True)
        raise typer.Exit(_EXIT_USAGE) from None
    if changed:
        say.print(f"[yellow]note:[/] {changed}", highlight=False, soft_wrap=True)


def open_database(say: Console) -> Database:
    """The database of this machine's settings with the newest schema; a file in the data folder is nobody else's to read."""
    from services.db.session import database
    from services.db.upgrade import upgrade
    from services.settings import get_settings

    settings = get_settings()
    if not settings.database_url:  # whoever makes a key for PostgreSQL need not own a folder of the service
        close_data_folder(say)
    base = database(settings.database)
    upgrade(base)
    return base
