"""Settings, read from environment variables with the prefix `KERNELWRIGHT_`; the defaults run everything on one machine.

| variable | default | meaning |
| --- | --- | --- |
| `KERNELWRIGHT_DATA_DIR` | `$XDG_DATA_HOME/kernelwright` or `~/.local/share/kernelwright` | database, bundles, caches; must be private to its owner (mode 0700), or nothing starts |
| `KERNELWRIGHT_RUNS_DIR` | `runs` in the data folder | folders of fine-tuning runs, for the page `/ui/runs` |
| `KERNELWRIGHT_DATABASE_URL` | SQLite in the data folder | `postgresql+psycopg://...` for many machines |
| `KERNELWRIGHT_BROKER_URL` | `memory://` (inside `kernelwright serve`) | `redis://...` for many machines |
| `KERNELWRIGHT_DEVICE` | `cuda` with an NVIDIA GPU and a torch for it, else `cpu` | device of this machine's worker, and of jobs that name none |
| `KERNELWRIGHT_MINIMUM_TIER` | `landlock` | weakest sandbox that may run a candidate |
| `KERNELWRIGHT_LLM_BASE_URL`, `_LLM_API_KEY`, `_LLM_MODEL` | unset | any OpenAI-compatible server |
| `KERNELWRIGHT_LLM_PRICES` | unset | JSON: US dollars per million input and output tokens by model, `{"m-1": [2.5, 10]}`; before the list prices of agent/providers/list_prices.json |
| `KERNELWRIGHT_GPU_PRICES` | unset | JSON: US dollars per hour by device name as its driver reports it, `{"NVIDIA H200": 3}`; for `kernelwright cost` |
| `KERNELWRIGHT_ENERGY_PRICE` | unset | US dollars per kilowatt-hour, if electricity is billed separately; for `kernelwright cost` |
| `KERNELWRIGHT_POLICY` | unset | our fine-tuned model: a checkpoint folder, or its name at `KERNELWRIGHT_POLICY_BASE_URL` |
| `KERNELWRIGHT_POLICY_BASE_URL`, `_POLICY_API_KEY` | unset | an OpenAI-compatible server for that model, for example vLLM |
| `KERNELWRIGHT_MAX_BODY_BYTES` | 1000000 | larger request bodies get 413 |
| `KERNELWRIGHT_HEAD_SECONDS`, `_BODY_SECONDS` | 10, 60 | a connection is closed if a request head takes longer; a body that takes longer gets 408 |
| `KERNELWRIGHT_ANSWER_SECONDS` | 60 | a client that receives no response data for this long is disconnected |
| `KERNELWRIGHT_STREAMS_PER_KEY` | 600 | concurrent event streams per key (without keys: per address) |
| `KERNELWRIGHT_ALLOWED_HOSTS` | unset | JSON list of host names that browsers may use for this service |
| `KERNELWRIGHT_RATE_LIMIT` | `6000/minute` | requests per key (without keys: per address); separate several limits with `;` |
| `KERNELWRIGHT_RATE_LIMIT_WITHOUT_KEY` | `120/minute` | requests per address without a valid key, once keys exist |
| `KERNELWRIGHT_LEASE_SECONDS` | 15 | a worker silent for this long loses its job |
| `KERNELWRIGHT_MAX_ATTEMPTS` | 3 | attempts that end in an internal fault, without stored progress, before the job fails |
| `KERNELWRIGHT_MAX_LOST_WORKERS` | 10 | the same for attempts that ended because the worker died, or because the database cut them off while it answered other queries: rarely the job's fault, but must end eventually |
| `KERNELWRIGHT_AUDIT_DAYS` | 365 | older audit log entries are deleted, and the deletion is logged; 0 keeps all |
| `KERNELWRIGHT_LOG_FORMAT` | `text` | `json`: one JSON object per line, for a log collector |
| `KERNELWRIGHT_ONE_USER` | `false` | whether lessons of a job are shared with all jobs of the same user, or without keys with all jobs (`services/memory`) |

In a container a value may also come from a file, for example `/run/secrets/kernelwright_llm_api_key`.
"""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from limits import parse_many
from pydantic import Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from evaluator.devices import DeviceName, usual_device

NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_SECRETS = Path("/run/secrets")


def _default_data_dir() -> Path:
    home = os.environ.get("XDG_DATA_HOME")
    return (Path(home) if home else Path.home() / ".local" / "share") / "kernelwright"


class Settings(BaseSettings):
    """See the module's table. Frozen: a process reads its environment once."""

    model_config = SettingsConfigDict(
        env_prefix="KERNELWRIGHT_",
        env_ignore_empty=True,  # compose passes an unset variable as an empty one
        secrets_dir=_SECRETS if _SECRETS.is_dir() else None,
        frozen=True,
        extra="ignore",
    )

    data_dir: Path = Field(default_factory=_default_data_dir)
    runs_dir: Path | None = None
    database_url: str | None = None
    broker_url: str = "memory://"
    device: DeviceName = Field(default_factory=usual_device)
    minimum_tier: Literal["namespaces", "landlock"] = "landlock"
    llm_base_url: str | None = None
    llm_api_key: SecretStr | None = None
    llm_model: str | None = None
    llm_prices: dict[str, tuple[NonNegative, NonNegative]] = Field(default_factory=dict)
    gpu_prices: dict[str, NonNegative] = Field(default_factory=dict)
    energy_price: NonNegative | None = None
    policy: str | None = None
    policy_base_url: str | None = None
    policy_api_key: SecretStr | None = None
    max_body_bytes: int = Field(default=1_000_000, ge=1_000)
    head_seconds: float = Field(default=10.0, gt=0, allow_inf_nan=False)
    body_seconds: float = Field(default=60.0, gt=0, allow_inf_nan=False)
    answer_seconds: float = Field(default=60.0, gt=0, allow_inf_nan=False)
    streams_per_key: int = Field(default=600, ge=1)
    allowed_hosts: tuple[str, ...] = ()
    rate_limit: str = "6000/minute"
    rate_limit_without_key: str = "120/minute"
    lease_seconds: float = Field(default=15.0, ge=1.0)
    max_attempts: int = Field(default=3, ge=1)
    max_lost_workers: int = Field(default=10, ge=1)
    audit_days: int = Field(default=365, ge=0, le=36_500)
    log_format: Literal["text", "json"] = "text"
    one_user: bool = False

    @field_validator("rate_limit", "rate_limit_without_key")
    @classmethod
    def _is_rate(cls, value: str) -> str:
        parse_many(value)
        return value

    @field_validator("llm_base_url", "policy_base_url")
    @classmethod
    def _no_secret_in_address(cls, value: str | None) -> str | None:
        """Reject a password in the URL: a job's request contains the URL and is shown to users."""
        if value and (urlsplit(value).username or urlsplit(value).password or urlsplit(value).query):
            raise ValueError(
                "holds a user, a password or a query; give a key in KERNELWRIGHT_LLM_API_KEY instead"
            )
        return value

    @field_validator("llm_base_url", "llm_api_key", "llm_model", "policy_api_key", mode="before")
    @classmethod
    def _empty_is_unset(cls, value: Any) -> Any:
        """Treat an empty value as unset: compose writes empty secret files, and `env_ignore_empty` covers only variables."""
        return None if value in ("", None) else value

    @property
    def database(self) -> str:
        """The SQLAlchemy URL in force."""
        return self.database_url or f"sqlite:///{self.data_dir.expanduser().resolve() / 'kernelwright.db'}"

    @property
    def runs(self) -> Path:
        """The folder of fine-tuning runs; it need not exist."""
        return (self.runs_dir or self.data_dir / "runs").expanduser().resolve()

    @property
    def embedded(self) -> bool:
        """Whether the queue lives inside this process, which must then also run the worker."""
        return self.broker_url.startswith("memory://")

    def job_dir(self, job_id: str) -> Path:
        """Return the working folder of a job on this machine; it holds nothing that the database does not."""
        return self.data_dir.expanduser().resolve() / "jobs" / job_id


@lru_cache(maxsize=1)
def get_settings() -> Settings:
    """Return the settings of this process."""
    return Settings()
