"""Proposes candidates that a service has accepted in its screen verdicts, read through the typed client.

The service returns only the digest of a task, not its text. The digest identifies tasks of the catalog and of files that the caller
passes. These candidates are judged again like all others: they may come from another machine, and a row states the machine it was
measured on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path

from evaluator.sources import TaskSource
from kernelbench_tasks import catalog
from rl.data.proposals import Proposal
from rl.errors import ConfigError, RLError
from services.client import Client, ClientError, UnsafeAddress

_MOST_BYTES = 4 << 20


class ServiceSilent(RLError):
    """The service or a task file could not be read; the message says what to do."""


def tasks_by_digest(files: Iterable[Path]) -> dict[str, TaskSource]:
    """Tasks of the catalog and of files, keyed by the digest that a service uses.

    Raises:
        ServiceSilent: a file cannot be read.
    """
    found = {task.sha256: TaskSource(task.name, task.source) for task in catalog.list_tasks()}
    for path in files:
        try:
            if path.stat().st_size > _MOST_BYTES:
                raise ServiceSilent(f"{path}: larger than {_MOST_BYTES} bytes, which no task is")
            task = TaskSource(path.stem, path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise ServiceSilent(f"{path}: cannot be read as a task ({error})") from None
        found[task.sha256] = task
    return found


def client_of(url: str) -> Client:
    """The client of a service, with the key from the environment.

    Raises:
        ConfigError: the address is invalid, or unsafe to send the key to.
    """
    try:
        return Client(url)
    except UnsafeAddress as error:
        raise ConfigError(f"`--service` cannot be asked: {error}") from None


def from_service(
    client: Client, device: str, tasks: Mapping[str, TaskSource], count: int
) -> Iterator[Proposal]:
    """At most `count` accepted candidates, the newest jobs first.

    Raises:
        ServiceSilent: the candidates could not be read.
    """
    given = 0
    try:
        for job in client.jobs():
            task = tasks.get(job.task.sha256)
            if task is None or job.device != device or not job.counts.accepted:
                continue
            for candidate in client.candidates(job.id):
                if candidate.verdict != "accepted":
                    continue
                if given == count:
                    return
                given += 1
                known = candidate.origin in ("llm", "policy", "compiler", "human")
                yield Proposal(
                    id=f"service/{device}/{candidate.id}",
                    task=task,
                    device=device,
                    make=partial(str, candidate.source),
                    origin=candidate.origin if known else "external",
                    source="service",
                    about={
                        "job": candidate.job_id,
                        "candidate": candidate.id,
                        "label": candidate.label[:200],
                    },
                )
    except ClientError as error:
        raise ServiceSilent(f"the service's candidates could not be read: {error}") from None
