"""Account of a job's model requests, for its evidence: templates, prices, spending and digests of requests and answers."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from typing import Any

from agent.budget import Cost
from agent.errors import ProviderError
from agent.providers.client import PREFIXES
from agent.records import Records
from agent.store import JobStore


def account(store: JobStore) -> dict[str, Any]:
    """The account as a JSON value; empty if no model was asked.

    It contains digests instead of texts: prompts may quote parts of a private module that the bundle's recipient must not see.
    """
    prices: dict[str, Any] = {}
    requests: list[dict[str, Any]] = []
    templates: set[str] = set()
    spent = Cost()
    for prefix in PREFIXES:
        records = Records(store, prefix)
        found = store.step(f"drawn/{prefix}prices")
        prices |= found if isinstance(found, dict) else {}
        spent += records.spent()
        for request in records.requests():
            prompt = records.prompt(request) or {}
            templates.add(str(prompt.get("prompts_sha256")))
            requests.append(
                {
                    "request": request,
                    "model": prompt.get("model"),
                    "prompt_sha256": prompt.get("messages_sha256"),
                    **_ending(records, request),
                }
            )
    if not requests:
        return {}
    return {
        "prompts_sha256": sorted(templates),
        "prices_usd_per_million_tokens": prices,
        "spent": asdict(spent),
        "requests": requests,
    }


def _ending(records: Records, request: str) -> dict[str, Any]:
    outcome = records.outcome(request)
    cost = asdict(records.cost(request))
    if outcome is None:
        return {"ending": "no answer", **cost}
    if isinstance(outcome, ProviderError):
        return {"ending": outcome.kind, **cost}
    text = json.dumps(outcome.text, ensure_ascii=True)
    return {"ending": outcome.finish, "answer_sha256": hashlib.sha256(text.encode()).hexdigest(), **cost}
