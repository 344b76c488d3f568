"""The typed Python client of the HTTP API. Needs only httpx and pydantic, nothing from the server.

from kernelwright.client import BudgetRequest, Client, OptimizeRequest

with Client("https://kernels.example.org") as client:  # the key: KERNELWRIGHT_API_KEY
    job = client.submit(OptimizeRequest(source=open("module.py").read(), budget=BudgetRequest(seconds=600)))
    job = client.wait(job.id)
"""

from __future__ import annotations

from services.client.client import DEFAULT_URL, FINAL_STATES, Client
from services.client.errors import (
    ClientError,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    Problem,
    ServiceFault,
    TooLarge,
    TooMany,
    Unauthorized,
    UnexpectedAnswer,
    Unreachable,
    UnsafeAddress,
    WaitedTooLong,
    WrongField,
)
from services.jobs.requests import (
    BudgetRequest,
    CandidateRequest,
    EvaluateRequest,
    ModelRequest,
    OptimizeRequest,
    StrategyRequest,
    TrafficRow,
)
from services.jobs.views import CandidateView, EvaluationView, EventView, JobView

__all__ = [
    "DEFAULT_URL",
    "FINAL_STATES",
    "BudgetRequest",
    "CandidateRequest",
    "CandidateView",
    "Client",
    "ClientError",
    "Conflict",
    "EvaluateRequest",
    "EvaluationView",
    "EventView",
    "Forbidden",
    "Invalid",
    "JobView",
    "ModelRequest",
    "NotFound",
    "OptimizeRequest",
    "Problem",
    "ServiceFault",
    "StrategyRequest",
    "TooLarge",
    "TooMany",
    "TrafficRow",
    "Unauthorized",
    "UnexpectedAnswer",
    "Unreachable",
    "UnsafeAddress",
    "WaitedTooLong",
    "WrongField",
]
