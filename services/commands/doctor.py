"""`kernelwright doctor`: reports what this machine can judge and whether the service's database is healthy."""

from __future__ import annotations

import typer

from evaluator.commands import doctor as evaluator_doctor
from evaluator.doctor.findings import BAD, GOOD, Line, Section
from services.commands.terminal import AsJson


def doctor(as_json: AsJson = False) -> None:
    """Say what this machine can judge. Exit status: 0 something, and all is well; 1 the database is not; 2 nothing."""
    from evaluator.folders import default_work_dir
    from services.settings import get_settings

    settings = get_settings()
    sections, judgeable = evaluator_doctor.examine(default_work_dir(), settings.minimum_tier)
    line = _database(settings.database)
    sections.append(Section("Service", [line], {"database_is_well": line.state == GOOD}))
    evaluator_doctor.show(sections, judgeable, as_json=as_json)
    raise typer.Exit(2 if not judgeable else 0 if line.state == GOOD else 1)


def _database(url: str) -> Line:
    from sqlalchemy.exc import SQLAlchemyError

    from services.db.session import database
    from services.db.upgrade import upgrade

    base = database(url)
    shown = base.engine.url.render_as_string(hide_password=True)
    try:
        upgrade(base)
    except SQLAlchemyError as error:
        advice = (
            "Start the database, or correct KERNELWRIGHT_DATABASE_URL; without one a SQLite file is used."
        )
        return Line("database", BAD, f"{shown}: {type(error).__name__}", advice)
    return Line("database", GOOD, shown)
