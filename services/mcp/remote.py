"""Service jobs for a coding agent: start one, get its status and its leaderboard."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import anyio.to_thread
from pydantic import ValidationError

from services.client import Client, ClientError, JobView, OptimizeRequest
from services.dashboard import ranking
from services.mcp.files import Refused

_MOST_ROWS = 25
_OF_CANDIDATE = ("id", "label", "origin", "verdict", "reason", "findings", "choice")
Result = TypeVar("Result")


class Remote:
    """One service.

    Args:
        url: its address.
        api_key: its key; defaults to the environment's.
        allow_insecure_key: see `services.client.Client`.
    """

    def __init__(self, url: str, api_key: str | None = None, *, allow_insecure_key: bool = False) -> None:
        self._url = url
        self._api_key = api_key
        self._allow_insecure_key = allow_insecure_key

    async def submit(
        self,
        name: str,
        source: str,
        *,
        device: str | None,
        seconds: float,
        candidates: int | None,
        usd: float,
    ) -> dict[str, Any]:
        """Start a job; if `usd` is 0, only the human and compiler origins propose candidates."""
        fields: dict[str, Any] = {"source": source, "name": name, "budget": {"seconds": seconds}}
        if device is not None:
            fields["device"] = device
        if candidates is not None:
            fields["budget"]["candidates"] = candidates
        if usd > 0:
            fields["budget"]["usd"] = usd
        else:
            fields["origins"] = ["human", "compiler"]
        try:
            request = OptimizeRequest.model_validate(fields)
        except ValidationError as error:
            raise Refused("; ".join(f"{one['loc'][0]}: {one['msg']}" for one in error.errors())) from None
        return _job(await self._ask(lambda client: client.submit(request)))

    async def status(self, job_id: str) -> dict[str, Any]:
        """Return a job's status."""
        return _job(await self._ask(lambda client: client.job(job_id)))

    async def leaderboard(self, job_id: str) -> dict[str, Any]:
        """Return a job's candidates, best first."""
        found = await self._ask(lambda client: list(client.candidates(job_id)))
        ranked = ranking.leaderboard([one.model_dump(mode="json") for one in found], None)
        rows = [
            {
                **{key: row.candidate[key] for key in _OF_CANDIDATE},
                "geomean_speedup": row.geomean,
                "ci95": row.ci95,
                "measured_on": row.measured_on or "-",
                "speedup_by_traffic": row.by_traffic,
            }
            for row in ranked[:_MOST_ROWS]
        ]
        return {"candidates": len(found), "shown": len(rows), "rows": rows}

    async def _ask(self, work: Callable[[Client], Result]) -> Result:
        def ask() -> Result:
            with Client(self._url, self._api_key, allow_insecure_key=self._allow_insecure_key) as client:
                return work(client)

        try:
            return await anyio.to_thread.run_sync(ask, abandon_on_cancel=True)
        except (ClientError, ValueError) as error:
            raise Refused(str(error)) from None


def _job(view: JobView) -> dict[str, Any]:
    shown = view.model_dump(mode="json", exclude={"urls"})
    shown["dashboard"] = view.urls.dashboard
    return shown
