"""What a service has accepted before: candidates of its jobs whose screen verdict says so, by the typed client alone.

The service does not give out the text of a task, only its digest. Tasks of the catalogue are known by it, others by the files that
the caller brings. What was accepted there is judged again like everything else: it may have been another machine's, and a row says
what it was measured on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path

from evaluator.sources import TaskSource
from kernelbench_tasks import catalog
from rl.data.proposals import Lead, Proposal
from rl.errors import ConfigError, RLError
from services.client import CandidateView, Client, ClientError, UnsafeAddress

_MOST_BYTES = 4 << 20


class ServiceSilent(RLError):
    """The service did not answer, or refused; the message says what to do."""


def tasks_by_digest(files: Iterable[Path]) -> dict[str, TaskSource]:
    """Tasks of the catalogue and of files, by the digest by which a service names them.

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
    """The client of a service; its key is the environment's.

    Raises:
        ConfigError: the address is none, or none that the key may be sent to.
    """
    try:
        return Client(url)
    except UnsafeAddress as error:
        raise ConfigError(f"`--service` cannot be asked: {error}") from None


def leads(client: Client, device: str, tasks: Mapping[str, TaskSource], count: int) -> Iterator[Lead]:
    """At most `count` accepted candidates, the newest jobs first.

    Raises:
        ServiceSilent: see there.
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
                name = f"service/{device}/{candidate.id}"
                yield Lead(name, task, partial(_kept, name, task, device, candidate))
    except ClientError as error:
        raise ServiceSilent(f"the service's candidates could not be read: {error}") from None


def _kept(name: str, task: TaskSource, device: str, candidate: CandidateView) -> Proposal:
    about = {"job": candidate.job_id, "candidate": candidate.id, "label": candidate.label[:200]}
    known = candidate.origin in ("llm", "policy", "compiler", "human")
    return Proposal(
        name, task, device, candidate.source, candidate.origin if known else "external", "service", about
    )
