"""Prometheus metrics: HTTP requests as they happen, and database figures at each scrape.

Every API process reports the same database figures: with several processes, scrape all and take `max`. No label contains
untrusted text or has one value per job.
"""

from __future__ import annotations

import logging
import re
import time
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from prometheus_client import CollectorRegistry, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from sqlalchemy import func, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from services.db.models import FINAL_STATES, STATES, Evaluation, Job, Verdict, utc_now
from services.db.session import Database
from services.observing import workers

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_LATENCIES_S = (0.005, 0.01, 0.025, 0.05, 0.08, 0.15, 0.25, 0.5, 1, 2.5, 5, 10, 60)
_WINDOW = timedelta(minutes=1)
# Verdicts are large and have no time index, but ids increase with time; no service stores more than this in a minute.
_LAST_VERDICTS = 1 << 12
_MOST_REASONS = 40
_SUMS_KEPT_S = 15.0
_WORD = re.compile(r"[a-z][a-z0-9_-]{0,63}")
_OPEN_STATES = tuple(state for state in STATES if state not in FINAL_STATES)  # by name, for the index
_KINDS = (("job", Job), ("evaluation", Evaluation))
_log = logging.getLogger(__name__)


class DatabaseMetrics(Collector):
    """Queue, verdicts, workers and spending, read from the database at each scrape."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._sums: tuple[float, float, float] = (-_SUMS_KEPT_S, 0.0, 0.0)

    def describe(self) -> list[Metric]:
        """Return nothing: registering must not query the database."""
        return []

    def collect(self) -> Iterator[Metric]:
        """See `prometheus_client.registry.Collector`; reports an unreachable database as a metric."""
        found: list[Metric] = []
        try:
            with self._database.read() as session:
                found += [
                    *self._queue(session),
                    *_verdicts(session),
                    *_workers(session),
                    *self._totals(session),
                ]
        except SQLAlchemyError as error:
            _log.warning("no metrics of the database: %s", type(error).__name__)
        yield GaugeMetricFamily("kernelwright_database_up", "Whether the database answered.", bool(found))
        yield from found

    def _queue(self, session: Session) -> Iterator[Metric]:
        depth = GaugeMetricFamily(
            "kernelwright_rows",
            "Jobs and evaluations that have not ended.",
            labels=["kind", "device", "state"],
        )
        age = GaugeMetricFamily(
            "kernelwright_queue_age_seconds",
            "Age of the oldest one that no worker has taken.",
            labels=["kind", "device"],
        )
        now = utc_now()
        for kind, model in _KINDS:
            rows = session.execute(
                select(model.device, model.state, func.count(), func.min(model.created_at))
                .where(model.state.in_(_OPEN_STATES))
                .group_by(model.device, model.state)
            ).all()
            for device, state, count, oldest in rows:
                depth.add_metric([kind, device, state], count)
                if state == "queued":
                    age.add_metric([kind, device], max(0.0, (now - oldest).total_seconds()))
        yield depth
        yield age

    def _totals(self, session: Session) -> Iterator[Metric]:
        ended = CounterMetricFamily("kernelwright_ended", "Jobs that have ended, by how.", labels=["state"])
        states = select(Job.state, func.count()).where(Job.state.in_(FINAL_STATES)).group_by(Job.state)
        for state, count in session.execute(states).all():
            ended.add_metric([state], count)
        yield ended
        at, usd, tokens = self._sums
        if time.monotonic() - at >= _SUMS_KEPT_S:  # the query reads every job
            usd, tokens = session.execute(select(func.sum(Job.usd), func.sum(Job.tokens))).one()
            usd, tokens = float(usd or 0), float(tokens or 0)
            self._sums = (time.monotonic(), usd, tokens)
        yield CounterMetricFamily("kernelwright_usd", "US dollars of model calls, all jobs.", usd)
        yield CounterMetricFamily("kernelwright_tokens", "Tokens of model calls, all jobs.", tokens)


class Metrics:
    """All metrics of one API process.

    Attributes:
        latency: seconds until a response begins, also of an event stream; `route` is a path template, never a path.
        under_way: requests in progress.
    """

    def __init__(self, database: Database) -> None:
        self._registry = CollectorRegistry()
        self.latency = Histogram(
            "kernelwright_http_request_seconds",
            "Seconds until an answer begins.",
            ["method", "route", "status"],
            buckets=_LATENCIES_S,
            registry=self._registry,
        )
        self.under_way = Gauge(
            "kernelwright_http_requests_in_progress",
            "Requests being answered, streams included.",
            registry=self._registry,
        )
        self._registry.register(DatabaseMetrics(database))
        ProcessCollector(registry=self._registry)

    def text(self) -> bytes:
        """Return all metrics in the Prometheus text format."""
        return generate_latest(self._registry)


def _verdicts(session: Session) -> Iterator[Metric]:
    newest = session.scalar(select(func.max(Verdict.id))) or 0
    recent = (Verdict.id > newest - _LAST_VERDICTS, Verdict.created_at > utc_now() - _WINDOW)
    counts = session.execute(select(Verdict.word, func.count()).where(*recent).group_by(Verdict.word)).all()
    verdicts = GaugeMetricFamily(
        "kernelwright_verdicts_last_minute", "Verdicts of the last minute.", labels=["verdict"]
    )
    for word, count in counts:
        verdicts.add_metric([_word(word)], count)
    yield verdicts
    rule = Verdict.body[("findings", 0, "rule")].as_string()
    rejected = session.execute(
        select(Verdict.word, rule, func.count())
        .where(*recent, Verdict.word.not_in(("accepted", "not_judged")))
        .group_by(Verdict.word, rule)
        .order_by(func.count().desc())
    ).all()
    reasons: Counter[tuple[str, str]] = Counter()
    for word, reason, count in rejected:
        reasons[_word(word), _word(reason) if len(reasons) < _MOST_REASONS else "other"] += count
    family = GaugeMetricFamily(
        "kernelwright_rejections_last_minute",
        "Rejections of the last minute, by verdict and by the rule of the first finding.",
        labels=["verdict", "rule"],
    )
    for (word, reason), count in reasons.items():
        family.add_metric([word, reason], count)
    yield family


def _workers(session: Session) -> Iterator[Metric]:
    count = GaugeMetricFamily("kernelwright_workers", "Workers alive.", labels=["device", "type", "state"])
    busy = GaugeMetricFamily(
        "kernelwright_device_busy_share",
        "Share of the last seconds in which the device was judging, mean over its workers.",
        labels=["device", "type"],
    )
    sick = GaugeMetricFamily(
        "kernelwright_device_unhealthy",
        "Workers that took their GPU out, by the rule of its health.",
        labels=["device", "rule"],
    )
    alive = workers.alive(session)
    for (device, rule), number in workers.ailments(alive).items():
        sick.add_metric([device, rule], number)
    for one in workers.capabilities(alive):
        for state in ("ready", "refusing", "checking"):
            count.add_metric([one.device, one.type, state], getattr(one, state))
        if one.busy_share is not None:
            busy.add_metric([one.device, one.type], one.busy_share)
    yield count
    yield busy
    yield sick


def _word(text: Any) -> str:
    """Return a well-formed word as a label, anything else as "other", which bounds the labels that untrusted text can create."""
    if text is None:
        return "none"
    return text if isinstance(text, str) and _WORD.fullmatch(text) else "other"
