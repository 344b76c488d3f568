"""A run's settings, read from YAML: one file per stage, or a file that lists the stages' files in order.

Settings left out have the defaults defined here, so a config shows only what is specific to a run. The error for a wrong setting is
one sentence that names the setting, its legal values and the closest known name.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from evaluator.devices import DeviceName
from rl.errors import ConfigError
from rl.overrides import override, read_settings

_SHOWN_CHARACTERS = 60


def _address(value: str) -> str:
    """A server's address, without a password in it."""
    try:
        parts = urlsplit(value)
        named = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        named = False
    if not named:
        raise ValueError("be the address of a server, such as http://127.0.0.1:8001")
    if "@" in parts.netloc:
        raise ValueError("has a password in it; a key is read from an environment variable")
    return value


def _number(value: Any) -> Any:
    """Refuse booleans as numbers: YAML's `yes` is not 1."""
    if isinstance(value, bool):
        raise ValueError("must be a number")
    return value


Count = Annotated[int, Field(ge=1), BeforeValidator(_number)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False), BeforeValidator(_number)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False), BeforeValidator(_number)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False), BeforeValidator(_number)]
Name = Annotated[str, Field(min_length=1, max_length=200)]
Address = Annotated[str, AfterValidator(_address)]


class Part(BaseModel):
    """Base of all parts: frozen, and nothing unknown in it."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ModelPart(Part):
    """The model to begin with: exactly one of a checkpoint and a fresh model.

    Attributes:
        path: a checkpoint's folder, a GGUF file, or a name on a hub; a stage of a list may leave it to the stage before it.
        fresh: settings of a model that is made from nothing, as transformers' config classes take them, with `model_type`.
        train: all weights, or low-rank adapters beside them.
        lora_rank: of the adapters.
        precision: of weights and arithmetic.
        vocabulary: most tokens of the tokenizer that is made for a fresh model.
        gradient_checkpointing: compute activations twice instead of keeping them.
    """

    path: Name | None = None
    fresh: dict[str, Any] | None = None
    train: Literal["full", "lora"] = "lora"
    lora_rank: Annotated[int, Field(ge=1, le=1024), BeforeValidator(_number)] = 16
    precision: Literal["bf16", "fp32"] = "bf16"
    vocabulary: Annotated[int, Field(ge=300, le=1_000_000), BeforeValidator(_number)] = 4096
    gradient_checkpointing: bool = False

    @model_validator(mode="after")
    def _one_beginning(self) -> ModelPart:
        if self.path is not None and self.fresh is not None:
            raise ValueError("has both `path` and `fresh`; give one")
        if self.fresh is not None and not isinstance(self.fresh.get("model_type"), str):
            raise ValueError("has a `fresh` without `model_type`, for example qwen3")
        return self


class OptimizerPart(Part):
    """How weights move. The rate's default is for adapters; of all weights it is 1e-6 (rl.md section 1.7)."""

    learning_rate: Annotated[Positive, Field(le=1)] = 1e-5
    warmup_steps: Annotated[int, Field(ge=0), BeforeValidator(_number)] = 0
    max_gradient_norm: Positive = 1.0


class FleetPart(Part):
    """Who judges.

    Attributes:
        url: a service that evaluates; without it referees of this machine do.
        local_referees: how many of those.
        device: what candidates are timed on.
        width: how many evaluations are under way at once, of all ranks together but one each; as many as a service has evaluators, and
            several times as many as there are referees here, which choose among them by their tasks.
        deadline_s: of one evaluation, for the evaluator.
        patience_s: how long a verdict is waited for, waiting for a turn among others, or for a referee of this machine, not counted.
        tries: how often an evaluation that failed for reasons of ours is begun.
        step_s: how long all rewards of a step may take together; what has not come then is None.
        dead_steps: how often a step without any answer is asked, and how many steps in a row without any verdict may
            follow each other, before training stops, to be resumed.
        machine: type of machine that rewards are for, as verdicts say it; without it that of this machine's referees, or of a
            service's first verdict.
        verdicts: file where verdicts are kept as they come; without it one in the stage's folder.
        shapes: what every task is judged at instead of sampled shapes, by split (`visible`, `adversarial`).
        first_look: with referees of this machine, how many of a task's sampled shapes a candidate is judged at, by split: the first timed
            ones, any of the others (all of a split that is not named); one whose speed must be measured again is judged at all of them then.
    """

    url: Address | None = None
    local_referees: Annotated[int, Field(ge=1, le=64), BeforeValidator(_number)] = 1
    device: DeviceName = "cuda"
    width: Annotated[int, Field(ge=1, le=4096), BeforeValidator(_number)] = 1
    deadline_s: Annotated[float, Field(ge=5, le=3600, allow_inf_nan=False), BeforeValidator(_number)] = 120.0
    patience_s: Positive = 300.0
    tries: Annotated[int, Field(ge=1, le=10), BeforeValidator(_number)] = 3
    step_s: Positive = 1800.0
    dead_steps: Count = 3
    machine: Name | None = None
    verdicts: Path | None = None
    shapes: dict[Literal["visible", "adversarial"], tuple[dict[str, int | str], ...]] | None = None
    first_look: dict[Literal["visible", "adversarial"], Count] | None = None

    @model_validator(mode="after")
    def _patient_enough(self) -> FleetPart:
        if self.patience_s < self.deadline_s:
            raise ValueError(f"has a `patience_s` below its `deadline_s` of {self.deadline_s:g}")
        if self.step_s < self.patience_s:
            raise ValueError(f"has a `step_s` below its `patience_s` of {self.patience_s:g}")
        if self.shapes is not None and not self.shapes.get("visible"):
            raise ValueError("has `shapes` without `visible` ones, and only those are paid for")
        if self.first_look is not None and (self.url is not None or self.shapes is not None):
            raise ValueError("has a `first_look`, which is of sampled shapes and of this machine's referees")
        if self.first_look is not None and "visible" not in self.first_look:
            raise ValueError("has a `first_look` without `visible` shapes, and only those are paid for")
        return self


class RewardPart(Part):
    """How a verdict becomes a number, see `rl.reward`.

    Attributes:
        shaping: how speed is paid, see `rl.reward.shaping`.
        most_speedup: higher speedups are paid like this one; `levels` ignores it.
        slower_penalty: where visible shapes are slower than the baseline, the share of the pay over which the slowest one decides, and an
            amount that is taken off.
        scaled: whether a group's distances from its mean are in its standard deviations, or as they are: then a group whose
            scores hardly differ moves little.
        clip: rewards end here.
        best_of: candidates of which the best will count; scores are then compared by what each adds to so many less one of its
            group (`rl.best_of`).
        least_spread: groups whose scores, or what they add, differ by less teach nothing: above the timer's noise. In
            units of the score; the default fits `log` and `clipped`.
        suspicious_speedup: above it a candidate is measured again.
        suspicious_jump: and above so many times the task's record, which is 1 before anything was found.
        agreement: the two measurements may differ by this share.
    """

    shaping: Literal["clipped", "log", "levels"] = "log"
    most_speedup: Annotated[Positive, Field(gt=1)] = 8.0
    slower_penalty: NotNegative = 0.2
    scaled: bool = True
    clip: Positive = 1.5
    best_of: Annotated[int, Field(ge=1, le=256), BeforeValidator(_number)] = 1
    least_spread: NotNegative = 0.01
    suspicious_speedup: Annotated[Positive, Field(gt=1)] = 3.0
    suspicious_jump: Annotated[Positive, Field(gt=1)] = 2.0
    agreement: Share = 0.1


class ExemplarPart(Part):
    """What prompts show, see `rl.exemplars`.

    Attributes:
        draw: `buckets`, or `none` for prompts without exemplars.
        count: how many are shown.
        bucket: width in log speedup.
        tau: temperature of the draw over the buckets' means, in units of speedup.
        dropout: share of prompts that show none.
        best: how many of the fastest are kept for each task.
        reservoir: how many of the others.
        begin_with: rows (`rl.rows`) of the stage's tasks that the database begins with; a stage of a list may leave it to the
            stage before it.
    """

    draw: Literal["buckets", "none"] = "buckets"
    count: Annotated[int, Field(ge=1, le=4), BeforeValidator(_number)] = 2
    bucket: Positive = 0.15
    tau: Positive = 0.3
    dropout: Share = 0.0
    best: Count = 64
    reservoir: Count = 64
    begin_with: Path | None = None


class HackPart(Part):
    """How likeness to known hacks is judged, see `rl.hacks`.

    Attributes:
        alike: from this likeness on a candidate is not paid for speed.
        begin_with: another run's database of hacks, whose cases this one begins with.
    """

    alike: Annotated[Share, Field(gt=0)] = 0.9
    begin_with: Path | None = None


class JudgePart(Part):
    """A language model that is asked where a reward jumps, see `rl.llm_judge`; it can only lower a reward.

    Attributes:
        model: the name that the server knows it by.
        url: of an OpenAI-compatible server, for example http://127.0.0.1:8001/v1.
        api_key_variable: environment variable of the key, which must be set; without it the agent's, if that is set.
        temperature: of its answers; the server's own by default.
        max_tokens: of an answer, its reasoning included.
        timeout_s: of a request.
    """

    model: Name
    url: Address
    api_key_variable: Name | None = None
    temperature: Annotated[NotNegative, Field(le=2)] | None = None
    max_tokens: Count = 2048
    timeout_s: Positive = 120.0


class GenerationPart(Part):
    """What samples while GRPO trains.

    Attributes:
        engine: transformers itself; or vLLM in the trainer's processes or as a server, which needs a torch of its own (not run by us).
        url: of vLLM's server.
        memory_share: of each GPU for vLLM in the trainer's processes.
    """

    engine: Literal["transformers", "vllm-colocate", "vllm-server"] = "transformers"
    url: Address | None = None
    memory_share: Annotated[Share, Field(gt=0, lt=1)] = 0.3

    @model_validator(mode="after")
    def _reachable(self) -> GenerationPart:
        if (self.engine == "vllm-server") != (self.url is not None):
            raise ValueError("has a `url` exactly if its `engine` is vllm-server")
        return self


class Stage(Part):
    """What all stages have.

    Attributes:
        name: of the run.
        output: folder of checkpoints, databases and reports.
        seed: where all draws begin.
        steps: optimizer steps.
        save_every: steps between checkpoints.
        tasks: names of tasks of the catalogue, or paths of task files, to train on.
        held_out: those that the run is evaluated on; never trained on.
        micro_batch: sequences that a device takes at once; the rest of a step is accumulated. Without it: all of a step.
    """

    name: Name
    output: Path
    seed: Annotated[int, Field(ge=0, lt=2**53), BeforeValidator(_number)] = 0
    steps: Count
    save_every: Count = 50
    tasks: tuple[Name, ...] = ()
    held_out: tuple[Name, ...] = ()
    micro_batch: Count | None = None
    model: ModelPart = ModelPart()
    optimizer: OptimizerPart = OptimizerPart()

    @model_validator(mode="after")
    def _apart(self) -> Stage:
        both = sorted(set(self.tasks) & set(self.held_out))
        if both:
            raise ValueError(f"has {both[0]!r} both in `tasks` and in `held_out`")
        return self


class SftStage(Stage):
    """Supervised fine-tuning on verified pairs; `max_tokens` bounds a row, its prompt included. Longer ones are left out."""

    stage: Literal["sft"]
    data: Path
    batch: Count = 32
    max_tokens: Count = 4096


class SelfsupStage(Stage):
    """Sample, judge, keep what was accepted, fine-tune on it, repeat; `max_tokens` bounds an answer. `steps` are those of all rounds."""

    stage: Literal["selfsup"]
    rounds: Count = 4
    samples: Count = 8
    batch: Count = 32
    temperature: Positive = 1.0
    max_tokens: Count = 4096
    fleet: FleetPart = FleetPart()
    hacks: HackPart = HackPart()

    @model_validator(mode="after")
    def _whole_rounds(self) -> SelfsupStage:
        if self.steps % self.rounds:
            raise ValueError(f"has {self.steps} `steps`, no multiple of its {self.rounds} `rounds`")
        return self


class ContrastiveStage(Stage):
    """GRPO on rewards of the referee, with scored exemplars in the prompt; `max_tokens` bounds an answer."""

    stage: Literal["contrastive"]
    group: Annotated[int, Field(ge=2, le=256), BeforeValidator(_number)] = 8
    tasks_a_step: Count = 32
    temperature: Positive = 1.0
    max_tokens: Count = 4096
    beta: NotNegative = 0.0
    epsilon: Annotated[Share, Field(gt=0, lt=1)] = 0.2
    epsilon_high: Annotated[Positive, Field(lt=1)] = 0.28
    entropy: NotNegative = 0.0
    generation: GenerationPart = GenerationPart()
    exemplars: ExemplarPart = ExemplarPart()
    reward: RewardPart = RewardPart()
    fleet: FleetPart = FleetPart()
    hacks: HackPart = HackPart()
    judge: JudgePart | None = None

    @model_validator(mode="after")
    def _clips(self) -> ContrastiveStage:
        if self.epsilon_high < self.epsilon:
            raise ValueError(f"has an `epsilon_high` below its `epsilon` of {self.epsilon:g}")
        if self.reward.best_of > self.group:
            raise ValueError(f"has a `reward.best_of` above its `group` of {self.group}")
        if self.judge is not None and self.judge.timeout_s > self.fleet.patience_s:
            raise ValueError("has a `judge.timeout_s` above its `fleet.patience_s`")
        return self


AnyStage = SftStage | SelfsupStage | ContrastiveStage
_STAGES: dict[str, type[SftStage] | type[SelfsupStage] | type[ContrastiveStage]] = {
    "sft": SftStage,
    "selfsup": SelfsupStage,
    "contrastive": ContrastiveStage,
}


def load(path: Path, settings: Sequence[str] = ()) -> tuple[AnyStage, ...]:
    """Load the stages of a file in order: its own stage, or those of the files in its `pipeline`.

    Paths in a `pipeline` are relative to the file; paths in a stage are relative to the working directory.

    Args:
        path: the file.
        settings: command-line settings that override the files, see `rl.overrides`.

    Raises:
        ConfigError: a setting or file is wrong; the message is one sentence.
    """
    document = read_settings(path)
    if "pipeline" not in document:
        return _last_word({str(path): document}, settings)
    others = sorted(set(document) - {"pipeline"})
    listed = document["pipeline"]
    if others:
        raise ConfigError(f"{path}: `{others[0]}` stands beside `pipeline`; a file lists stages or is one")
    if not isinstance(listed, list) or not listed or not all(isinstance(one, str) for one in listed):
        raise ConfigError(f"{path}: `pipeline` must be a list of the stages' files")
    files = [path.parent / one for one in listed]
    return _last_word({str(file): read_settings(file) for file in files}, settings)


def _last_word(documents: Mapping[str, dict[str, Any]], settings: Sequence[str]) -> tuple[AnyStage, ...]:
    overridden = override(documents, settings)
    return tuple(parse(document, where) for where, document in overridden.items())


def parse(document: Mapping[str, Any], where: str) -> AnyStage:
    """Parse one stage.

    Args:
        document: the parsed YAML.
        where: prefix for the error message.

    Raises:
        ConfigError: a setting is wrong; the message is one sentence.
    """
    stage = document.get("stage")
    if not isinstance(stage, str) or stage not in _STAGES:
        named = "no `stage` is named" if stage is None else f"there is no stage {_shown(stage)}"
        raise ConfigError(f"{where}: {named}; stages are {', '.join(_STAGES)}{_meant(str(stage), _STAGES)}")
    kind = _STAGES[stage]
    try:
        return kind.model_validate(dict(document))
    except ValidationError as error:
        raise ConfigError(f"{where}: {_sentence(kind, error)}") from None


def _sentence(kind: type[Part], error: ValidationError) -> str:
    # Report an unknown name first: a missing setting may be a misspelled one.
    first = min(error.errors(), key=lambda one: one["type"] != "extra_forbidden")
    place = ".".join(str(step) for step in first["loc"])
    if first["type"] == "extra_forbidden":
        *above, last = (str(step) for step in first["loc"])
        known = _names(kind, above)
        return f"`{place}` is no setting{_meant(last, known) or '; there are ' + ', '.join(sorted(known))}"
    if first["type"] == "missing":
        return f"`{place}` is missing"
    said = str(first["msg"]).removeprefix("Value error, ")
    if said.startswith("has "):
        return f"`{place}` {said}" if place else f"the stage {said}"
    # Turn pydantic's message, such as "Input should be less than 1", into the end of a sentence.
    rule = said.removeprefix("Input ").removeprefix("should ").removeprefix("must ")
    return f"`{place}` is {_shown(first['input'])}; it must {rule}"


def _names(kind: type[Part], above: list[str]) -> list[str]:
    """The settings of a part of a stage."""
    part: type[BaseModel] = kind
    for step in above:
        inside = part.model_fields[step].annotation
        candidates = [inside, *get_args(inside)]
        part = next(one for one in candidates if isinstance(one, type) and issubclass(one, BaseModel))
    return list(part.model_fields)


def _meant(given: str, known: Any) -> str:
    near = difflib.get_close_matches(given, list(known), 1, 0.5)
    return f"; did you mean `{near[0]}`?" if near else ""


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."
