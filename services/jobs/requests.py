"""Request bodies. Unknown fields and options that this version does not support are errors.

Every string ends up in a database and in the referee's JSON, so validation rejects text that cannot be encoded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from services.jobs.parsing import LONGEST_PARSED, parsed

MAX_SHAPES_PER_SPLIT = 64
MAX_MODELS = 8
MAX_DIMS = 64
# Priorities up to OWN_PRIORITY order a user's own rows; greater ones go ahead of all users' turns (`services.jobs.turns`).
OWN_PRIORITY = 4
MOST_PRIORITY = 9
# A float and every database hold integers up to this exactly; only Python accepts integers of thousands of digits.
_LARGEST_SIZE = 2**53
_LONGEST_WORD = 200
# One year; clocks and timeouts overflow beyond a few hundred years.
_LONGEST_S = 366 * 24 * 3600.0


def _encodable(text: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError("holds a lone surrogate, which is not text in UTF-8") from None
    if "\x00" in text:
        raise ValueError("holds a NUL character")
    return text


def _source(text: str) -> str:
    if not text.strip():
        raise ValueError("is empty")
    return _encodable(text)


def _parses(text: str) -> str:
    """Reject source that does not parse, which the worker would reject minutes later. Longer sources are left to the worker."""
    if len(text) <= LONGEST_PARSED:
        try:
            parsed(text)  # one nested too deep for this process is left to the worker's sandbox
        except SyntaxError as error:
            raise ValueError(f"is no Python: line {error.lineno}: {error.msg}") from None
    return text


def _one_line(text: str) -> str:
    text = _encodable(text).strip()
    if not text.isprintable():
        raise ValueError("holds a line break or another control character")
    return text


def _model_by_name(value: Any) -> Any:
    return {"model": value} if isinstance(value, str) else value


def _size(value: Any) -> int | str:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError("is neither a whole number nor a word")
    if isinstance(value, int) and abs(value) > _LARGEST_SIZE:
        raise ValueError(f"is beyond {_LARGEST_SIZE}")
    if isinstance(value, str) and len(value) > _LONGEST_WORD:
        raise ValueError(f"is a word of more than {_LONGEST_WORD} characters")
    return value if isinstance(value, int) else _one_line(value)


Source = Annotated[str, Field(min_length=1), AfterValidator(_source)]
TaskText = Annotated[str, Field(min_length=1), AfterValidator(_source), AfterValidator(_parses)]
Line = Annotated[str, Field(max_length=_LONGEST_WORD), AfterValidator(_one_line)]
Size = Annotated[Any, AfterValidator(_size), WithJsonSchema({"type": ["integer", "string"]})]
Dims = Annotated[dict[Line, Size], Field(max_length=MAX_DIMS)]
# The names of `evaluator.devices.DeviceName`, which `services.client` must not import: it runs without torch.
Device = Literal["cpu", "cuda"]
Precision = Literal["default", "strict", "tf32", "bf16", "fp16", "fp8"]
_PRECISION = "the tier to judge in, instead of the file's: `default` is what PyTorch does unless told otherwise, `strict` allows no TF32"
Priority = Annotated[
    int,
    Field(
        ge=-OWN_PRIORITY,
        le=MOST_PRIORITY,
        description="which of one's own waiting jobs and evaluations go first: the greater. It gains nothing over other users; "
        f"beyond {OWN_PRIORITY}, which takes a key of scope admin, it goes before all other users'",
    ),
]
OwnShapes = Annotated[list[Dims], Field(max_length=MAX_SHAPES_PER_SPLIT)]
Split = Literal["visible", "validation", "held_out", "adversarial"]


def own_shapes(asked: Mapping[Any, Sequence[Any]] | None) -> dict[str, Any] | None:
    """Convert a request's shapes, by split, to the stored form."""
    return {str(split): list(shapes) for split, shapes in asked.items()} if asked else None


_TASK = """\
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x) + 1.0


def get_inputs():
    return [torch.randn(256, 1024)]


def get_init_inputs():
    return []
"""
_CANDIDATE = """\
import torch


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x).add_(1.0)
"""


def _examples(*found: dict[str, Any]) -> ConfigDict:
    """Model configuration with example bodies for the OpenAPI document."""
    return ConfigDict(extra="forbid", json_schema_extra={"examples": list(found)})


class Request(BaseModel):
    """Base of the request bodies."""

    model_config = ConfigDict(extra="forbid")

    @field_validator("*", mode="before")
    @classmethod
    def _is_no_truth_value(cls, value: Any, info: ValidationInfo) -> Any:
        """Reject booleans where a number belongs, because Pydantic would read true as 1."""
        wanted = cls.model_fields[str(info.field_name)].annotation
        if isinstance(value, bool) and wanted is not bool and bool not in get_args(wanted):
            raise ValueError("is true or false, which does not belong here")
        return value


class BudgetRequest(Request):
    """Upper limits of a job; leave one out for no limit."""

    model_config = _examples({"seconds": 600, "candidates": 20, "usd": 2.5})

    usd: float | None = Field(
        default=None, ge=0, le=1e9, allow_inf_nan=False, description="US dollars for model calls"
    )
    seconds: float | None = Field(
        default=None,
        gt=0,
        le=_LONGEST_S,
        allow_inf_nan=False,
        description="wall-clock seconds of the job, over all attempts; what runs at their end is cut off",
    )
    gpu_seconds: float | None = Field(
        default=None, gt=0, le=_LONGEST_S, allow_inf_nan=False, description="seconds of judging on a GPU"
    )
    tokens: int | None = Field(default=None, ge=0, le=2**53, description="prompt plus completion tokens")
    candidates: int | None = Field(
        default=None, ge=1, le=10_000, description="how many candidates are judged"
    )
    plateau: int | None = Field(
        default=None, ge=1, le=10_000, description="stop after so many candidates in a row without progress"
    )


class ModelRequest(Request):
    """One language model of the server's configured endpoint; a plain string is short for {"model": ...}.

    The endpoint itself is the operator's to choose: a client that could name one would be sent the operator's key.
    """

    model_config = _examples({"model": "m-1", "samples": 2, "temperature": 0.8})

    model: Line = Field(min_length=1, description="its name at the endpoint")
    samples: int = Field(default=2, ge=1, le=32, description="first attempts, each with another approach")
    temperature: float | None = Field(default=None, ge=0, le=2, description="the server's own by default")
    max_tokens: int = Field(
        default=32_768, ge=1, le=200_000, description="the most of one answer, reasoning included"
    )


class TaskRequest(Request):
    """The part that names a task: its `source`, or `task`, the name of one in the catalogue."""

    source: TaskText | None = Field(
        default=None, description="a task file: class Model, get_inputs, get_init_inputs"
    )
    task: Line | None = Field(default=None, description="name of a task of the catalogue instead of `source`")

    @model_validator(mode="after")
    def _exactly_one(self) -> TaskRequest:
        if (self.source is None) == (self.task is None):
            raise ValueError("give exactly one of `source` (the task's text) and `task` (a catalogue name)")
        return self


class TrafficRow(Request):
    """A shape that the user's program really has, and how often."""

    model_config = _examples({"dims": {"rows": 128}, "weight": 12})

    dims: Dims = Field(description="sizes by the task's names; what is left out is as in the file")
    weight: float = Field(
        gt=0, lt=1e18, allow_inf_nan=False, description="number of calls, or in proportion to it"
    )


class DimRequest(Request):
    """What a dimension that was inferred shall be instead; what is left out stays as inferred."""

    min: int | None = Field(default=None, ge=0, lt=2**40)
    max: int | None = Field(default=None, ge=0, lt=2**40)
    multiple_of: int | None = Field(default=None, ge=1, lt=2**40)
    default: Size | None = None
    choices: list[Size] | None = Field(default=None, min_length=1, max_length=32)

    @model_validator(mode="after")
    def _one_kind(self) -> DimRequest:
        if self.choices is not None and not (self.min is self.max is self.multiple_of is None):
            raise ValueError("give a range (min, max, multiple_of) or choices, not both")
        return self


class StrategyRequest(Request):
    """How the search goes on after the first attempts; what is left out is as the service has it."""

    model_config = _examples({"rounds": 2, "beam": 2, "tune": True})

    rounds: int | None = Field(default=None, ge=0, le=100, description="rounds of search")
    beam: int | None = Field(default=None, ge=1, le=4, description="candidates a round goes on from")
    branches: int | None = Field(default=None, ge=1, le=4, description="changes asked for from each of them")
    critic: bool | None = Field(default=None, description="one request names one bottleneck and one change")
    plan: bool | None = Field(default=None, description="one request plans the change before the code")
    patience: int | None = Field(default=None, ge=1, le=100, description="rounds without gain before the end")
    tune: bool | None = Field(default=None, description="tune the TUNABLES of accepted candidates by machine")
    tune_variants: int | None = Field(
        default=None, ge=1, le=1024, description="settings of TUNABLES that are tried"
    )
    ablate: bool | None = Field(
        default=None, description="undo the winner's changes one at a time, judging each"
    )
    ablate_changes: int | None = Field(default=None, ge=1, le=16, description="how many are undone")
    timings: int | None = Field(
        default=None, ge=0, le=4096, description="timings at further validation shapes before the choice"
    )
    seed: int | None = Field(default=None, ge=0, lt=2**53, description="where random draws begin")


class OptimizeRequest(TaskRequest):
    """Body of POST /optimize."""

    model_config = _examples(
        {"task": "layernorm_relu_add", "device": "cpu", "budget": {"seconds": 600}},
        {
            "source": _TASK,
            "name": "relu and one",
            "origins": ["compiler"],
            "budget": {"seconds": 600, "candidates": 20},
        },
        {
            "task": "layernorm_relu_add",
            "traffic": [{"dims": {"rows": 128}, "weight": 12}, {"dims": {"rows": 4096}, "weight": 1}],
            "origins": ["human", "llm"],
            "models": [{"model": "m-1", "samples": 2}],
            "strategy": {"rounds": 2, "beam": 2},
            "batch": True,
            "budget": {"tokens": 200_000},
        },
    )

    name: Line | None = Field(default=None, description="what to call the job")
    device: Device | None = Field(
        default=None, description="where to judge; the server's own device by default"
    )
    precision: Precision | None = Field(default=None, description=_PRECISION)
    shapes: dict[Split, OwnShapes] | None = Field(
        default=None, description="own shapes per split; by default they are sampled"
    )
    traffic: list[TrafficRow] | None = Field(
        default=None,
        min_length=1,
        max_length=MAX_SHAPES_PER_SPLIT,
        description="own shapes with weights: searched at, weighed in the summary, and what the choice goes by",
    )
    space: dict[Line, DimRequest] | None = Field(
        default=None,
        min_length=1,
        max_length=12,
        description="for a task without DIMS: the range of a dimension, instead of the one that is inferred",
    )
    budget: BudgetRequest = Field(default_factory=BudgetRequest, description="where to stop")
    origins: list[Literal["human", "compiler", "llm", "policy"]] | None = Field(
        default=None, min_length=1, description="what may propose; by default every origin that is configured"
    )
    start_from: Source | None = Field(
        default=None,
        description="what to begin with: a candidate file, or a kernel in Triton, CUDA or C++ for the models to wrap or port",
    )
    models: list[Annotated[ModelRequest, BeforeValidator(_model_by_name)]] | None = Field(
        default=None,
        min_length=1,
        max_length=MAX_MODELS,
        description="language models to ask; by default the one that the service is set up with",
    )
    batch: bool = Field(
        default=False,
        description="ask the models through files in the format of OpenAI's Batch API: the job is `waiting` until answers "
        "to GET /jobs/{id}/batch come by POST /jobs/{id}/batch",
    )
    strategy: StrategyRequest = Field(default_factory=StrategyRequest, description="how models are asked")
    priority: Priority = 0
    energy: bool = Field(
        default=False,
        description="measure joules of the fastest candidates where their times tie within 2 %, and deliver the one that needs least",
    )
    batch_invariant: bool = Field(
        default=False,
        description="deliver one member for all sizes, so that a result does not depend on its batch",
    )


class BatchAnswers(Request):
    """Body of POST /jobs/{id}/batch."""

    model_config = _examples({"answers": '{"custom_id": "0-0", "response": {"body": {}}}\n', "more": True})

    answers: Source = Field(
        description="lines of the Batch API's output or error file: a JSON object with a custom_id each"
    )
    more: bool = Field(
        default=False, description="more answers follow, in a request of their own: the job waits for them"
    )


class EvaluateRequest(TaskRequest):
    """Body of POST /evaluate."""

    model_config = _examples({"source": _TASK, "candidate": _CANDIDATE, "device": "cpu"})

    candidate: Source = Field(description="a candidate file: class ModelNew")
    device: Device | None = None
    effort: Literal["screen", "confirm"] = "screen"
    precision: Precision | None = Field(default=None, description=_PRECISION)
    shapes: dict[Literal["visible", "adversarial"], Annotated[OwnShapes, Field(min_length=1)]] | None = Field(
        default=None,
        min_length=1,
        description="own shapes instead of sampled ones: timed at `visible`, only checked at `adversarial`",
    )
    deadline_s: float = Field(
        default=900.0, ge=5, le=3600, allow_inf_nan=False, description="seconds for the whole evaluation"
    )
    priority: Priority = 0


class CandidateRequest(Request):
    """Body of POST /jobs/{id}/candidates."""

    model_config = _examples({"candidate": _CANDIDATE, "label": "in place"})

    candidate: Source = Field(description="a candidate file: class ModelNew")
    label: Line | None = Field(default=None, description="a short name for tables")
    note: Annotated[str, Field(max_length=2000), AfterValidator(_encodable)] = ""
