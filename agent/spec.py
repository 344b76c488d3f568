"""The specification and outcome of a job: frozen dataclasses that cross process boundaries as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from evaluator.verdict import Summary

if TYPE_CHECKING:
    from pathlib import Path

    from evaluator.sources import TaskSource

API_KEY_VARIABLE = "KERNELWRIGHT_LLM_API_KEY"
POLICY_API_KEY_VARIABLE = "KERNELWRIGHT_POLICY_API_KEY"


@dataclass(frozen=True)
class Strategy:
    """Settings of the search that follows the first attempts.

    Attributes:
        rounds: maximum number of rounds; 0 stops after the first attempts and their one follow-up.
        beam: number of parent candidates per round, 1 to 4.
        branches: number of different changes requested for each parent.
        critic: whether a separate short request names one bottleneck and one change before the code request.
        plan: whether a separate request writes the change down step by step before the code request.
        patience: the search ends after this many rounds without a gain of 2 %.
        tune: whether to autotune the `TUNABLES` of accepted candidates.
        tune_variants: maximum number of settings to try.
        ablate: whether to revert the winner's changes one at a time and judge each result as a candidate.
        ablate_changes: maximum number of changes to revert.
        timings: total number of extra timings of candidates at further validation shapes before the final choice.
        seed: seed of all random draws; None draws one and stores it.

    Raises:
        ValueError: if a number is out of range.
    """

    rounds: int = 0
    beam: int = 2
    branches: int = 1
    critic: bool = True
    plan: bool = False
    patience: int = 2
    tune: bool = True
    tune_variants: int = 128
    ablate: bool = False
    ablate_changes: int = 4
    timings: int = 24
    seed: int | None = None

    def __post_init__(self) -> None:
        limits = {
            "rounds": (0, 100),
            "beam": (1, 4),
            "branches": (1, 4),
            "patience": (1, 100),
            "tune_variants": (1, 1024),
            "ablate_changes": (1, 16),
            "timings": (0, 4096),
        }
        for name, (least, most) in limits.items():
            if not least <= getattr(self, name) <= most:
                raise ValueError(f"strategy.{name} is {getattr(self, name)}; it goes from {least} to {most}")


DEFAULT_STRATEGY = Strategy(rounds=4, ablate=True)
"""The default strategy; the search ends earlier if it brings no gain or the budget is spent."""


@dataclass(frozen=True)
class Budget:
    """Upper limits of one job; None means no limit. A limit stops new work but not the final judging, except `seconds`.

    Attributes:
        usd: money for model calls, in US dollars, at the prices of `ModelChoice`.
        tokens: prompt plus completion tokens of model calls.
        seconds: wall-clock seconds of the whole job, summed over attempts. Work still running then is cut off, see `agent.clock`.
        gpu_seconds: seconds of judging on a GPU.
        candidates: number of candidates judged.
        plateau: number of consecutive candidates without progress after which the search stops.
    """

    usd: float | None = None
    tokens: int | None = None
    seconds: float | None = None
    gpu_seconds: float | None = None
    candidates: int | None = None
    plateau: int | None = None


@dataclass(frozen=True)
class ModelChoice:
    """One language model and how to reach it.

    Holds the *name* of the environment variable with the key, never the key itself, and is therefore safe to store and show.

    Attributes:
        model: the model's name in the API; for "policy" a folder.
        base_url: for example "http://127.0.0.1:8000/v1"; None uses the openai client's default.
        api_key_variable: environment variable of the key; an unset variable sends a placeholder (local servers).
        samples: independent first attempts.
        temperature: sampling temperature; None for the server's default.
        max_tokens: completion limit in tokens, reasoning included; a server that allows less is asked for less.
        timeout_s: seconds for one request.
        usd_per_million_input_tokens: price; 0 for a self-hosted model.
        usd_per_million_output_tokens: price; 0 for a self-hosted model.
        provider: a name of `agent.providers.registry`: "openai" (any compatible server), "policy" (a local checkpoint) or
            "batch" (requests go through files, see `agent.providers.batch`).
        folder: for "batch", the folder with requests and answers.
        origin: "policy" for a model that this project fine-tuned, with any provider; else "llm".
    """

    model: str
    base_url: str | None = None
    api_key_variable: str = API_KEY_VARIABLE
    samples: int = 1
    temperature: float | None = None
    max_tokens: int = 32_768
    timeout_s: float = 900.0
    usd_per_million_input_tokens: float = 0.0
    usd_per_million_output_tokens: float = 0.0
    provider: str = "openai"
    folder: str | None = None
    origin: str = "llm"


@dataclass(frozen=True)
class JobSpec:
    """One job: a task, a device and limits.

    Attributes:
        job_id: unique id, used in messages only.
        name: the job's display name.
        task: the reference module's source; untrusted text.
        device: "cpu" or "cuda".
        budget: see `Budget`.
        origins: proposers to run, in this order; model requests are sent before any of them run (`agent.scheduling`).
        models: language models for origin "llm"; without models, that proposer is skipped.
        start_from: starting point. A candidate file is judged first, under origin "external"; a bare kernel (Triton, CUDA,
            C++) is shown to the models, which turn it into a candidate.
        shapes: custom shapes per split ({"visible": [{"rows": 4}], ...}); None lets the evaluator sample them.
        traffic: weighted shapes ([{"dims": {"rows": 4}, "weight": 12.0}, ...]) that drive the choice; None uses the task's own
            TRAFFIC.
        space: the user's overrides of the inferred space, by dimension ({"rows": {"max": 64}}), for a task that declares no
            DIMS; None keeps the inferred space.
        strategy: settings for the search after the first attempts.
        energy: measure joules of the fastest candidates whose times tie, and prefer the lowest; takes minutes.
        batch_invariant: deliver one member for all sizes, so a result does not depend on the other items in its batch.
    """

    job_id: str
    name: str
    task: TaskSource
    device: str = "cpu"
    budget: Budget = field(default_factory=Budget)
    origins: tuple[str, ...] = ("human", "compiler", "llm")
    models: tuple[ModelChoice, ...] = ()
    start_from: str | None = None
    shapes: dict[str, list[dict[str, Any]]] | None = None
    traffic: tuple[dict[str, Any], ...] | None = None
    space: dict[str, dict[str, Any]] | None = None
    strategy: Strategy = DEFAULT_STRATEGY
    batch_invariant: bool = False
    energy: bool = False

    def to_json(self) -> dict[str, Any]:
        """The spec as a JSON value; contains no secrets."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> JobSpec:
        """The inverse of `to_json`.

        Raises:
            KeyError: if a required field is missing.
            TypeError: if a nested object has an unknown field.
        """
        from evaluator.sources import TaskSource

        return cls(
            job_id=data["job_id"],
            name=data["name"],
            task=TaskSource(name=data["task"]["name"], source=data["task"]["source"]),
            device=data.get("device", "cpu"),
            budget=Budget(**(data.get("budget") or {})),
            origins=tuple(data.get("origins") or ("human", "compiler", "llm")),
            models=tuple(ModelChoice(**model) for model in data.get("models") or ()),
            start_from=data.get("start_from"),
            shapes=data.get("shapes"),
            traffic=tuple(data["traffic"]) if data.get("traffic") else None,
            space=data.get("space"),
            strategy=Strategy(**data["strategy"]) if data.get("strategy") else DEFAULT_STRATEGY,
            batch_invariant=bool(data.get("batch_invariant", False)),
            energy=bool(data.get("energy", False)),
        )


@dataclass(frozen=True)
class JobOutcome:
    """How a job ended.

    Attributes:
        state: "succeeded", "failed", "cancelled", or "waiting" if the job must run again when a batch has answers.
        verdict_word: the held-out verdict of optimized.py, or why the job failed ("task_rejected", ...); None if
            the job was cancelled before that.
        reason: one human-readable sentence.
        winner_sha256: the candidate that optimized.py was built around.
        bundle_path: the zip, or None.
        summary: the held-out summary of optimized.py, or None.

    Raises:
        ValueError: if the state is "succeeded" with a headline below 1.0x.
    """

    state: str
    verdict_word: str | None
    reason: str
    winner_sha256: str | None = None
    bundle_path: Path | None = None
    summary: Summary | None = None

    def __post_init__(self) -> None:
        headline = self.summary.geomean_speedup if self.summary else None
        if self.state == "succeeded" and headline is not None and headline < 1.0:
            raise ValueError(f"a job does not succeed with {headline:.2f}x of the best baseline's speed")
