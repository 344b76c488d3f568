"""One task, open for as long as candidates for it keep coming: its reference process, shapes and baselines stay warm."""

from __future__ import annotations

import math
import os
import secrets
import statistics
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from evaluator.content.pools import TensorInput
from evaluator.content.weights import redraw
from evaluator.errors import ProtocolViolation, RoleFailure
from evaluator.referee.fleet import Fleet
from evaluator.referee.side import Block, PlainInput, ShapeInputs, Side, StateEntry
from evaluator.roles import frames, runner
from evaluator.roles.arena import carrier, sealed_text
from evaluator.roles.frames import TensorMeta
from evaluator.roles.process import RoleProcess
from evaluator.roles.values import is_encoded
from evaluator.shapes.sampler import SPLITS, sample
from evaluator.shapes.space import Dims, IntegerDim, Space, defaults, parse_space
from evaluator.sources import TaskSource

Progress = Callable[[str, int, int, str], None]
_DRAWS = 3
_BUILD_SECONDS = 60.0
_COMPILE_SECONDS = 240.0
_CALL_SECONDS = 60.0
_MIN_CALLS = 4
#: A baseline this much slower (log) than the leader after three rounds has no part in the next ones.
_CLEARLY_SLOWER = 0.35


@dataclass
class Baseline:
    """One way a user could run the reference without us: mode and threads, with its time at one shape."""

    name: str
    mode: str
    threads: int
    median_us: float = 0.0
    failure: str = ""


@dataclass
class OpenShape:
    """A shape that is open in the reference process."""

    dims: Dims
    key: int
    inputs: ShapeInputs
    side: Side
    output_metas: tuple[TensorMeta, ...] = ()
    baselines: list[Baseline] = field(default_factory=list)
    checks: dict[str, Any] = field(default_factory=dict)
    ranked: bool = False

    @property
    def best(self) -> Baseline:
        return min((b for b in self.baselines if not b.failure), key=lambda baseline: baseline.median_us)

    @property
    def rivals(self) -> list[Baseline]:
        """The best baseline, and the best one with another number of threads.

        When somebody else takes a core, the ranking among thread counts turns round, by a factor of ten where threads
        wait for one another; so this choice is not left to a ranking of some seconds ago.
        """
        best = self.best
        others = [b for b in self.baselines if not b.failure and b.threads != best.threads]
        return [best, *sorted(others, key=lambda baseline: baseline.median_us)[:1]]


def freeze_dims(dims: Dims) -> tuple[tuple[str, Any], ...]:
    """A hashable form of a shape."""
    return tuple(sorted(dims.items()))


class TaskSession:
    """The reference role of one task.

    Raises (from the constructor): RoleFailure with the word ``task_rejected``, ``timeout`` or ``out_of_memory``.
    """

    def __init__(self, fleet: Fleet, task: TaskSource, expires_at: float = math.inf) -> None:
        self.fleet = fleet
        self._expires_at = expires_at
        self.task = task
        self.folder = f"task-{task.sha256[:32]}"
        self.process = self._start()
        try:
            answer = self.process.request_json(runner.DESCRIBE, {}, _BUILD_SECONDS)
            self.space: Space = parse_space(answer.get("dims"))
            self.direction = str(answer.get("direction"))
            self._input_dims = _names(answer.get("input_dims"), self.space)
            self._init_dims = _names(answer.get("init_dims"), self.space)
            if self.direction != "forward":
                raise RoleFailure("task_rejected", f"DIRECTION = {self.direction!r} is not supported yet")
        except BaseException:
            self.close()
            raise
        self.shapes: dict[tuple[tuple[str, Any], ...], OpenShape] = {}
        self.compiled: set[tuple[Any, ...]] = set()
        self.unavailable: dict[str, str] = {}
        self._next_key = 1
        self.aa: dict[str, Any] | None = None
        self._expires_at = math.inf

    def _start(self, server: str = "reference") -> RoleProcess:
        """A process with the task loaded; what Inductor compiles in it stays in the task's own folder."""
        process = self.fleet.server(server).fork(
            role="reference",
            folder=self.folder,
            folder_mode="share",
            limits=self.fleet.limits,
            may_compile=True,
        )
        process.expires_at = self._expires_at
        text = sealed_text(self.task.source.encode("utf-8", "surrogatepass"))
        try:
            process.request(runner.LOAD, {}, _BUILD_SECONDS, (text,))
        except BaseException:
            process.close()
            raise
        finally:
            os.close(text)
        return process

    # -- shapes ------------------------------------------------------------------------------------------------

    def sample(self, split: str, cap_bytes: int | None = None) -> list[Dims]:
        """Shapes of a split, of inputs below ``cap_bytes`` or the fleet's own cap. Held-out ones are drawn anew each time."""
        seed = secrets.token_hex(16) if split == "held_out" else self.task.sha256
        cap = cap_bytes or self.fleet.input_cap_bytes
        return sample(self.space, split, seed, lambda shapes: self._fits(shapes, cap))

    def fitting(self, shapes: list[Dims], cap_bytes: int) -> list[Dims]:
        """Those whose inputs stay below ``cap_bytes``."""
        fits = self._fits(shapes, cap_bytes) if shapes else []
        return [dims for dims, is_small in zip(shapes, fits, strict=True) if is_small]

    def _fits(self, shapes: list[Dims], cap: int) -> list[bool]:
        answer = self.process.request_json(
            runner.SIZES, {"shapes": shapes, "input_dims": self._input_dims}, _BUILD_SECONDS
        ).get("bytes")
        if not isinstance(answer, list) or len(answer) != len(shapes):
            raise ProtocolViolation("task_rejected", "the task's process sent no valid sizes")
        return [
            self._guess_fits(dims, cap) if size is None else isinstance(size, int) and size <= cap
            for dims, size in zip(shapes, answer, strict=True)
        ]

    def _guess_fits(self, dims: Dims, cap: int) -> bool:
        """Where sizes cannot be probed: keep the product of all integer dimensions below a quarter of the cap."""
        elements = 1
        for name, dim in self.space.items():
            if isinstance(dim, IntegerDim):
                elements *= max(int(dims[name]), 1)
        return elements * 16 <= cap

    def describe(self) -> dict[str, Any]:
        """The shape space and the shapes of every split but the held-out one, with descriptors at the defaults."""
        shape = self.open(defaults(self.space))
        dims = {
            name: {"min": dim.low, "max": dim.high, "multiple_of": dim.multiple_of, "default": dim.default}
            if isinstance(dim, IntegerDim)
            else {"choices": list(dim.values), "default": dim.default}
            for name, dim in self.space.items()
        }
        return {
            "ok": True,
            "verdict": None,
            "reason": "",
            "dims": dims,
            "inputs": [
                {"dtype": a.meta.dtype, "shape": list(a.meta.shape)}
                if isinstance(a, TensorInput)
                else {"value": a.value}
                for a in shape.inputs.arguments
            ],
            "outputs": [{"dtype": meta.dtype, "shape": list(meta.shape)} for meta in shape.output_metas],
            "parameters": sum(entry.meta.elements for entry in shape.inputs.state),
            "shapes": {split: [] if split == "held_out" else self.sample(split) for split in SPLITS},
        }

    def open(self, dims: Dims) -> OpenShape:
        """Opens a shape (once): the reference is built, weights are re-drawn, it runs once to learn its outputs."""
        frozen = freeze_dims(dims)
        if frozen not in self.shapes:
            self.shapes[frozen] = self._open_in(self.process, dims, self._next_key)
            self._next_key += 1
        return self.shapes[frozen]

    def _open_in(self, process: RoleProcess, dims: Dims, key: int) -> OpenShape:
        request = {
            "shape": key,
            "dims": dims,
            "input_dims": self._input_dims,
            "init_dims": self._init_dims,
            "draws": _DRAWS,
        }
        answer = process.request_json(runner.BUILD, request, _BUILD_SECONDS)
        try:
            inputs = _read_inputs(process, answer)
        except (KeyError, TypeError, ValueError, frames.FrameError) as error:
            raise ProtocolViolation("task_rejected", f"the task's description is invalid: {error}") from None
        side = Side(process, key, inputs, self.fleet.chain, gpu=self.fleet.gpu)
        side.open(_BUILD_SECONDS)
        side.fill(side.slot_count if self.fleet.gpu else 1)
        block = side.block([0], _CALL_SECONDS)
        return OpenShape(dims, key, inputs, side, block.report.metas)

    # -- baselines ---------------------------------------------------------------------------------------------

    def compile_baselines(self, shapes: list[OpenShape], progress: Progress) -> None:
        """Compiles every baseline for exactly these shapes, in parallel, and loads them; no clock runs."""
        todo = [shape for shape in shapes if not shape.baselines]
        self._compile_ahead([s for s in todo if freeze_dims(s.dims) not in self.compiled], progress)
        for shape in todo:
            self._load_baselines(shape)

    def rank_baselines(self, shapes: list[OpenShape], progress: Progress) -> None:
        """Times every baseline at the shapes where that has not been done; the caller holds the device's clock."""
        todo = [shape for shape in shapes if not shape.ranked]
        for done, shape in enumerate(todo):
            progress("baselines", done, len(todo), f"measuring baselines at {_words(shape.dims)}")
            self.rank(shape)
            shape.ranked = True

    def _compile_ahead(self, shapes: list[OpenShape], progress: Progress) -> None:
        """Fills the task's compile cache in parallel; failures show again, and are recorded, when baselines load."""
        if not shapes:
            return
        self.fleet.build_headers()
        done = 0
        workers = min(self.fleet.compile_workers, len(shapes))

        def work(part: list[OpenShape]) -> None:
            nonlocal done
            process = self._start("compile")
            try:
                for key, shape in enumerate(part):
                    progress("baselines", done, len(shapes), f"compiling baselines for {_words(shape.dims)}")
                    opened = self._open_in(process, shape.dims, key + 1)
                    process.thaw()
                    for baseline in self.fleet.baselines():
                        self._prepare(opened, baseline)
                    opened.side.close()
                    done += 1
            except RoleFailure:
                # Compiled in the reference process instead, where a failure names its baseline.
                return
            finally:
                process.close()

        if self.fleet.gpu:
            return
        # A fork server dies with the thread that started it, so make sure here that it runs.
        self.fleet.server("compile")
        with ThreadPoolExecutor(workers) as pool:
            for _ in pool.map(work, [shapes[index::workers] for index in range(workers)]):
                continue
        self.compiled.update(freeze_dims(shape.dims) for shape in shapes)

    def prepare(self, side: Side, baseline: Baseline) -> None:
        """Makes a baseline ready to be called at a shape; compiles it if need be."""
        request = {
            "shape": side.key,
            "variant": baseline.name,
            "mode": baseline.mode,
            "threads": baseline.threads,
        }
        side.process.request(runner.VARIANT, request, _COMPILE_SECONDS)

    def _prepare(self, shape: OpenShape, baseline: Baseline) -> None:
        try:
            self.prepare(shape.side, baseline)
        except RoleFailure as failure:
            if shape.side.process.dead or baseline.mode == "eager":
                raise
            baseline.failure = failure.sentence
            self.unavailable[baseline.name] = failure.sentence

    def _load_baselines(self, shape: OpenShape) -> None:
        baselines = self.fleet.baselines()
        for baseline in baselines:
            self._prepare(shape, baseline)
        self.process.freeze()
        shape.baselines = baselines

    def rank(self, shape: OpenShape) -> None:
        """Times every baseline in turn, round by round, so that drift hits all alike; the fastest get more rounds.

        Choosing a baseline that is not the fastest would flatter every candidate, so this must not be left to noise:
        all get blocks of the same length, near rivals are told apart again, and times are only compared within a
        round, which is shorter than the seconds for which a neighbor slows this machine.
        """
        rivals = [baseline for baseline in shape.baselines if not baseline.failure]
        everybody, side = list(rivals), shape.side
        guesses_us = {baseline.name: self._guess_us(side, baseline) for baseline in rivals}
        calls = math.ceil(self.fleet.device.block_target_us / 2 / min(guesses_us.values()))
        calls = max(_MIN_CALLS, min(calls, side.slot_count))
        rounds: list[dict[str, int]] = []
        nulls_ns: list[int] = []
        for count, keep in ((3, 3), (4, 2), (6, 1)):
            for _ in range(count):
                rounds.append({b.name: self.run(side, b, calls, chained=True).elapsed_ns for b in rivals})
                nulls_ns.append(self.null_ns(side, calls))
            names = [baseline.name for baseline in rivals]
            score = {name: _relative(rounds, name, names) for name in names}
            near = min(score.values()) + _CLEARLY_SLOWER
            rivals = sorted((b for b in rivals if score[b.name] <= near), key=lambda b: score[b.name])[:keep]
            if len(rivals) == 1:
                break
        best = rivals[0]
        median_ns = statistics.median(turn[best.name] for turn in rounds)
        null_ns = min(statistics.median(nulls_ns), median_ns / 2)
        for baseline in everybody:
            ratio = math.exp(_relative(rounds, baseline.name, [best.name]))
            baseline.median_us = (median_ns * ratio - null_ns) / calls / 1e3

    def _guess_us(self, side: Side, baseline: Baseline) -> float:
        """A first idea of the time per call; warms the baseline up, too."""
        many = min(16, side.slot_count)
        self.run(side, baseline, 1, chained=True)
        short = self.run(side, baseline, 1, chained=True).elapsed_ns
        long = self.run(side, baseline, many, chained=True).elapsed_ns
        return max((long - short) / (1e3 * (many - 1)), 1.0)

    def run(self, side: Side, baseline: Baseline, calls: int, *, chained: bool) -> Block:
        """One block of a baseline with fresh contents."""
        slots = list(range(calls))
        side.ready(_CALL_SECONDS, warm=baseline.name, threads=baseline.threads, poison=0)
        side.fill(calls)
        return side.block(slots, _CALL_SECONDS, variant=baseline.name, chained=chained)

    def null_ns(self, side: Side, calls: int) -> int:
        """What a block of so many calls takes when the module does nothing.

        On a GPU only its start and end: between them the harness's host work may hide behind the device's, and to take
        it off would flatter whoever keeps the device busy.
        """
        if side.gpu:
            calls = 1
        slots = list(range(calls))
        side.ready(_CALL_SECONDS, warm=runner.NULL, poison=0)
        side.fill(calls)
        return side.block(slots, _CALL_SECONDS, variant=runner.NULL, chained=True).elapsed_ns

    def close(self) -> None:
        """Ends the reference process."""
        self.process.close()


def _relative(rounds: list[dict[str, int]], name: str, rivals: list[str]) -> float:
    """Median over rounds of how much slower (log) a variant was than the rivals' geometric mean in the same round."""
    return statistics.median(
        math.log(turn[name]) - statistics.fmean(math.log(turn[rival]) for rival in rivals)
        for turn in rounds
        if name in turn
    )


def _words(dims: Dims) -> str:
    return ", ".join(f"{name}={value}" for name, value in dims.items()) or "the task's one shape"


def _names(value: Any, space: Space) -> list[str]:
    return [name for name in value if name in space] if isinstance(value, list) else []


def _meta(fields: dict[str, Any]) -> TensorMeta:
    """Checks a tensor description by sending it through the binary form, which validates everything."""
    encoded = frames.encode_meta(
        TensorMeta(fields["dtype"], tuple(fields["shape"]), tuple(fields["strides"]))
    )
    return frames.decode_meta(encoded, 0)


def _read_inputs(process: RoleProcess, answer: dict[str, Any]) -> ShapeInputs:
    arguments: list[TensorInput | PlainInput] = []
    for entry in answer["inputs"]:
        if "tensor" not in entry:
            if not is_encoded(entry["value"]):
                raise ValueError("an argument has no valid form")
            arguments.append(PlainInput(entry["value"]))
            continue
        meta = _meta(entry["tensor"])
        addresses = [int(address) for address in entry["addresses"]]
        draws = [process.read_memory(at, meta.span_bytes).view(carrier(meta.dtype)) for at in addresses]
        if len(draws) != _DRAWS:
            raise ValueError("an input has the wrong number of draws")
        arguments.append(TensorInput(meta, draws))
    state = []
    for entry in answer["state"]:
        meta = _meta(entry["meta"])
        values = process.read_memory(int(entry["address"]), meta.span_bytes).view(carrier(meta.dtype))
        if not answer.get("redrawn"):
            values = redraw(str(entry["name"]), values, meta.dtype, parameter=bool(entry["parameter"]))
        state.append(StateEntry(str(entry["name"]), meta, np.ascontiguousarray(values)))
    if not all(is_encoded(value) for value in answer["init"]):
        raise ValueError("an init argument has no valid form")
    if not any(isinstance(argument, TensorInput) for argument in arguments):
        raise ProtocolViolation("task_rejected", "get_inputs() returns no tensor")
    return ShapeInputs(answer["init"], arguments, state)
