"""`kernelwright keys`: manages users and keys directly in the service's database, on its machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Column, Table

from services.commands.terminal import AsJson, give_up, open_database, print_json

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Keys of the service on this machine: as soon as there is one, every request needs one.",
)
Named = Annotated[str, typer.Argument(help="A key's id, or how it begins (kw_...), as `keys list` shows it.")]


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="What to call the key, for example where it is used.")],
    user: Annotated[str, typer.Option(help="Whose it is; a user of a new name is made.")],
    scope: Annotated[
        str, typer.Option(help="read: look at one's own; submit: also make and cancel; admin: everything.")
    ] = "submit",
    expires_days: Annotated[float, typer.Option(min=0.0, help="Days that it is valid; 0: for ever.")] = 90.0,
    as_json: AsJson = False,
) -> None:
    """Make a key and print it, this one time: it is stored nowhere.

    Example: kernelwright keys create laptop --user ada --scope admin
    """
    from services.users import keys
    from services.users.audit import FROM_THE_MACHINE

    with _writing() as session:
        made = keys.make_key(session, FROM_THE_MACHINE, user, name, scope, expires_days or None)
    _show_new(made, as_json=as_json)


@app.command("list")
def list_all(as_json: AsJson = False) -> None:
    """List keys, newest first, without their secrets."""
    from services.api.key_views import key_view
    from services.users import keys

    with _writing() as session:
        found = [key_view(row, user) for row, user in keys.list_keys(session)]
    if as_json:
        print_json([view.model_dump(mode="json") for view in found])
        return
    table = Table(
        Column("key", no_wrap=True),
        "user",
        "name",
        "scope",
        "state",
        "made",
        "expires",
        "last used",
        "quotas",
    )
    for view in found:
        limits = ", ".join(f"{name}={value:g}" for name, value in view.quotas if value is not None)
        table.add_row(
            view.prefix,
            view.user,
            view.name,
            view.scope,
            view.state,
            _day(view.created_at),
            _day(view.expires_at) if view.expires_at else "never",
            _day(view.last_used_at) if view.last_used_at else "never",
            limits or "none",
        )
    Console().print(table)


@app.command()
def rotate(
    key: Named,
    grace_hours: Annotated[
        float, typer.Option(min=0.0, max=720.0, help="How long the old key stays valid.")
    ] = 24.0,
    as_json: AsJson = False,
) -> None:
    """Make a key in the place of another and print it, this one time.

    Example: kernelwright keys rotate kw_ab12cd34 --grace-hours 2
    """
    from services.users import keys
    from services.users.audit import FROM_THE_MACHINE

    with _writing() as session:
        made = keys.rotate_key(session, FROM_THE_MACHINE, key, grace_hours)
    _show_new(made, as_json=as_json)


@app.command()
def revoke(key: Named) -> None:
    """End a key at once and for good, with the logins made with it."""
    from services.users import keys
    from services.users.audit import FROM_THE_MACHINE

    with _writing() as session:
        row, user = keys.revoke_key(session, FROM_THE_MACHINE, key)
    Console(stderr=True).print(f"{row.prefix} of {user.name} is revoked", highlight=False)


@app.command()
def quota(
    user: Annotated[str, typer.Argument(help="Whose quotas.")],
    settings: Annotated[
        list[str] | None,
        typer.Argument(help="NAME=NUMBER, or NAME= for no limit; without any they are shown."),
    ] = None,
) -> None:
    """Show or set what a user may use.

    Names: jobs_queued, jobs_running, and candidates, usd, gpu_seconds, cpu_seconds with _per_day or _per_month.

    Example: kernelwright keys quota ada jobs_running=2 usd_per_day=5 gpu_seconds_per_month=36000
    """
    from pydantic import ValidationError
    from sqlalchemy import select

    from services.db.models import User
    from services.errors import NotFound
    from services.users import quotas
    from services.users.audit import FROM_THE_MACHINE

    with _writing() as session:
        row = session.scalar(select(User).where(User.name == user))
        if row is None:
            raise NotFound("there is no user of that name; `kernelwright keys create` makes one")
        wanted = dict(row.quotas)
        for setting in settings or ():
            name, _, value = setting.partition("=")
            wanted[name] = value or None
        try:
            found = quotas.Quotas.model_validate(wanted)
        except ValidationError as error:
            problems = "; ".join(f"{item['loc'][0]}: {item['msg']}" for item in error.errors())
            give_up(problems)
        if settings:
            quotas.set_quotas(session, FROM_THE_MACHINE, row, found)
        shown = [(one.quota, one.used) for one in quotas.standing_of(session, row.id).spent]
    used = dict(shown)
    table = Table("quota", "limit", "used")
    for name, limit in found:
        table.add_row(
            name, "none" if limit is None else f"{limit:g}", f"{used[name]:g}" if name in used else ""
        )
    Console().print(table)


def _show_new(made: Any, *, as_json: bool) -> None:
    from services.api.key_views import new_key_view

    view = new_key_view(made)
    if as_json:
        print_json(view.model_dump(mode="json"))
        return
    until = f"until {_day(view.expires_at)}" if view.expires_at else "until it is revoked"
    Console(stderr=True).print(
        f"key {view.prefix} of {view.user}, scope {view.scope}, valid {until}. It is shown now and never again:",
        highlight=False,
    )
    print(view.key)  # noqa: T201 - the program's output


@contextmanager
def _writing() -> Iterator[Session]:
    from services.errors import ServiceError

    base = open_database(Console(stderr=True))
    try:
        with base.write() as session:
            yield session
    except ServiceError as error:
        give_up(str(error))


def _day(time: datetime) -> str:
    return time.strftime("%Y-%m-%d %H:%M")
