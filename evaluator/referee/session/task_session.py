"""One open task: its reference process, shapes and baselines stay warm between candidates."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from evaluator.baselines import MODES
from evaluator.counting import counted
from evaluator.devices.base import AUTOCAST_DTYPES
from evaluator.errors import ProtocolViolation, RoleFailure
from evaluator.precision import TIERS
from evaluator.referee.memory.sizes import MemorySize, of_compiler, of_reference, of_shapes
from evaluator.referee.processes.compiled_for_candidates import take
from evaluator.referee.processes.fleet import Fleet
from evaluator.referee.session import autocast_baselines, baseline_ranking
from evaluator.referee.session.compile_ahead import CompileAhead, Work, work_for
from evaluator.referee.session.drawn_shapes import DrawnShapes
from evaluator.referee.session.repeatable import check_repeatable
from evaluator.referee.session.shape_caps import ShapeCaps
from evaluator.referee.session.task_memory import TaskMemory
from evaluator.referee.sides.open_shape import Baseline, OpenShape, freeze_dims
from evaluator.referee.sides.shape_inputs import ShapeInputs
from evaluator.referee.sides.side import Side
from evaluator.referee.sides.task_inputs import DRAWS, read_inputs
from evaluator.roles import compiled_files, frames, protocol
from evaluator.roles.arena import sealed_text
from evaluator.roles.process import RoleProcess
from evaluator.shapes.space import Dims, Space, in_words, parse_space, varying
from evaluator.shapes.traffic import parse_traffic
from evaluator.sources import TaskSource, task_folder

Progress = Callable[[str, int, int, str], None]
_DIRECTIONS = ("forward", "forward_backward")
_BUILD_SECONDS = 60.0
_COMPILE_SECONDS = 240.0
#: Words of a source that runs a compiler itself. A docstring may contain them too.
_COMPILES = re.compile(r"\bcompile\b|\b_inductor\b|\b_dynamo\b")
#: Estimated device memory of a call, in multiples of its inputs, if it was not measured; plus a context.
_CALL_COSTS, _CONTEXT_BYTES = 5, 1 << 30
#: An environment variable. With "0" a description compiles nothing ahead: each baseline is compiled when it is needed. Compilations
#: ahead run for minutes, which takes the cores from other work.
COMPILE_AHEAD = "KERNELWRIGHT_COMPILE_AHEAD"


class TaskSession:
    """The reference role of one task.

    Raises (from the constructor): RoleFailure with the word ``task_rejected``, ``timeout`` or ``out_of_memory``.
    """

    def __init__(self, fleet: Fleet, task: TaskSource, expires_at: float = math.inf) -> None:
        self.fleet = fleet
        self._expires_at = expires_at
        self.task = task
        self.folder = task_folder(task.sha256)
        self.shapes: dict[tuple[tuple[str, Any], ...], OpenShape] = {}
        #: Of the largest module so far.
        self.weights_bytes = 0
        self.memory = TaskMemory(fleet)
        self.ahead = CompileAhead(self, self.memory.compilers_bytes)
        #: Whether its process certainly comes from a fork server that has torch's compiler.
        self.has_compiler = fleet.has_compiler
        #: Whether a candidate has been judged with it.
        self.has_served = False
        self.process = self.start_process()
        try:
            answer = self.process.request_json(protocol.DESCRIBE, {}, _BUILD_SECONDS)
            self.space: Space = parse_space(answer.get("dims"))
            #: From the task's own file; a request may override it.
            self.traffic = parse_traffic(answer.get("traffic"), self.space)
            self.direction = str(answer.get("direction"))
            self.training = answer.get("training") is True
            self.precision = str(answer.get("precision"))
            self.own_oracle = answer.get("oracle") is True
            self._input_dims = _names(answer.get("input_dims"), self.space)
            self._init_dims = _names(answer.get("init_dims"), self.space)
            self.caps = ShapeCaps(
                self.process, self.space, self._input_dims, self._init_dims, fleet.caps,
                backward=self.direction == "forward_backward",
            )  # fmt: skip
            free = varying(self.space, self._init_dims, _names(answer.get("varies"), self.space))
            self.drawn = DrawnShapes(fleet, self.space, task.sha256, self.caps, self.traffic, free)
            if self.direction not in _DIRECTIONS:
                raise RoleFailure(
                    "task_rejected",
                    f"DIRECTION = {self.direction!r:.90} is not a direction; use one of {', '.join(_DIRECTIONS)}",
                )
            if self.precision not in TIERS:
                raise RoleFailure(
                    "task_rejected",
                    f"PRECISION = {self.precision!r:.90} is not a precision; use one of {', '.join(TIERS)}",
                )
        except BaseException:
            self.close()
            raise
        self.unavailable: dict[str, str] = {}
        if self.precision == "fp8":
            self.unavailable["autocast to float8"] = "torch has none; autocast to bfloat16 stands in for it"
        self._next_key = 1
        self.aa: dict[str, Any] | None = None
        self._expires_at = math.inf

    def start_process(
        self, server: str = "reference", begun: Callable[[RoleProcess], None] = lambda process: None
    ) -> RoleProcess:
        """A process with the task loaded. ``begun`` gets it before the task is loaded.

        What Inductor compiles in it stays in the task's folder.
        """
        if _COMPILES.search(self.task.source):  # it may compile in its first call
            self.fleet.load_compiler()
            self.fleet.build_headers()
        limits = self.fleet.limits
        process = self.fleet.server(server).fork(
            role="reference", folder=self.folder, folder_mode="share", limits=limits, may_compile=True
        )
        process.expires_at = self._expires_at
        begun(process)
        files = self._files_of_others()
        source = self.task.source.encode("utf-8", "surrogatepass")
        texts = tuple(sealed_text(content) for content in (source, b"", b"", files))
        try:
            process.request(protocol.LOAD, {}, _BUILD_SECONDS, texts)
        except BaseException:
            process.close()
            raise
        finally:
            for text in texts:
                os.close(text)
        return process

    @property
    def idle_dims(self) -> list[str]:
        """Dimensions that neither ``get_inputs`` nor ``get_init_inputs`` takes."""
        return [name for name in self.space if name not in {*self._input_dims, *self._init_dims}]

    # -- what compilers made -----------------------------------------------------------------------------------

    @property
    def _files_key(self) -> str:
        return self.fleet.kept_files.key("", self.task.sha256, self.fleet.environment())

    def _files_of_others(self) -> bytes:
        """Compiled files of this task in another referee's work folder, if this one has none."""
        folder = self.fleet.store / self.folder
        if any((folder / name).exists() for name in compiled_files.FOLDERS):
            return b""
        return self.fleet.kept_files.get(self._files_key)

    def _keep_files(self) -> None:
        """Stores compiled files of this task's source, for other referees' processes of the same source."""
        files = take(self.process)
        self.process.freeze()
        if files:
            self.fleet.kept_files.put(self._files_key, files)

    # -- shapes ------------------------------------------------------------------------------------------------

    def open(self, dims: Dims) -> OpenShape:
        """Opens a shape (once): builds the reference, redraws its weights, and runs it once to learn its outputs."""
        frozen = freeze_dims(dims)
        if frozen not in self.shapes:
            opened = self._open_in(self.process, dims, self._next_key)
            self._next_key += 1
            try:
                check_repeatable(opened.side)
            except BaseException:
                self.forget(opened.inputs, opened.side)
                raise
            self.shapes[frozen] = opened
            self.fleet.trim()
        return self.shapes[frozen]

    @contextmanager
    def trial(self, dims: Dims) -> Iterator[OpenShape]:
        """Opens a shape temporarily. It does not count in anything sized by the open shapes."""
        opened = self._open_in(self.process, dims, self._next_key)
        self._next_key += 1
        try:
            check_repeatable(opened.side)
            yield opened
        finally:
            opened.side.close(collect=self.fleet.gpu)
            self._forget_draws(opened.inputs)

    def memory_of_others(self, shapes: Sequence[OpenShape] | None = None) -> MemorySize:
        """On a GPU: the memory that a candidate's process or a control needs for these shapes, or for all open
        shapes.
        """
        shapes = list(self.shapes.values()) if shapes is None else shapes
        needs = [(shape.inputs.needs, shape.side.most_calls(shape.output_metas)) for shape in shapes]
        return of_shapes(needs)

    def _open_in(self, process: RoleProcess, dims: Dims, key: int, *, lean: bool = False) -> OpenShape:
        """Opens a shape in a process of the reference.

        With ``lean`` it has memory for single calls only, to compile baselines.
        """
        request = {
            "shape": key,
            "dims": dims,
            "input_dims": self._input_dims,
            "init_dims": self._init_dims,
            "draws": DRAWS,
            "precision": self.precision,
            "training": self.training,
            "backward": self.direction == "forward_backward",
        }
        answer = process.request_json(protocol.BUILD, request, _BUILD_SECONDS)
        try:
            inputs = read_inputs(
                process,
                answer,
                self.fleet.keeper,
                training=self.training,
                backward=self.direction == "forward_backward",
            )
        except (KeyError, TypeError, ValueError, frames.FrameError) as error:
            raise ProtocolViolation("task_rejected", f"the task's description is invalid: {error}") from None
        inputs.renew_small(self.fleet.gpu)
        self.weights_bytes = max(self.weights_bytes, inputs.needs.weights_bytes)
        side = self.fleet.side(process, key, inputs, self._memory(inputs, dims, lean=lean))
        of_task: dict[str, Any] = {"precision": self.precision, "own_oracle": self.own_oracle}
        try:
            side.open(_BUILD_SECONDS)
            side.fill(1)
            if lean:
                return OpenShape(dims, key, inputs, side, **of_task)
            block = side.block(1)
            return OpenShape(dims, key, inputs, side, block.report.metas, side.aliased(block), **of_task)
        except BaseException:
            self.forget(inputs, side)
            raise

    def forget(self, inputs: ShapeInputs, side: Side) -> None:
        """Releases the referee's end of a shape's memory."""
        side.release()
        self._forget_draws(inputs)

    def _forget_draws(self, inputs: ShapeInputs) -> None:
        if self.fleet.keeper is not None:
            self.fleet.keeper.forget(inputs.tensors)

    def _memory(self, inputs: ShapeInputs, dims: Dims, *, lean: bool) -> MemorySize:
        """On a GPU: the memory that a process of the reference needs at a shape.

        Raises:
            RoleFailure: ``task_rejected``: it does not fit beside a candidate.
        """
        budget, needs = self.fleet.budget, inputs.needs
        if self.fleet.gpu:
            budget.check(needs, in_words(dims))
        if lean:
            return of_compiler(needs)
        return of_reference(needs, budget.usual)

    # -- baselines ---------------------------------------------------------------------------------------------

    def compile_baselines(
        self,
        shapes: list[OpenShape],
        progress: Progress,
        *,
        thorough: bool = True,
        every: bool = False,
        between: Callable[[], None] = lambda: None,
        has_device: bool = False,
    ) -> None:
        """Compiles the baselines for exactly these shapes, in parallel, and loads them. Nothing is timed.

        If an earlier referee has ranked them here, only the contenders are loaded, unless ``every`` one is wanted.
        ``between`` is called after each load, and ``progress`` is told what is done.

        Args:
            shapes: where.
            thorough: include the modes that take long to compile; a screen does without them.
            every: see above.
            between: see above.
            has_device: see :meth:`CompileAhead.finish`.
        """
        todo = [shape for shape in shapes if shape.lacks(thorough=thorough, every=every)]
        for shape in todo:
            shape.thorough = shape.thorough or thorough
            shape.baselines = [] if every or shape.distrusted else self._recall(shape, shape.thorough)
            shape.remembered = bool(shape.baselines)
            shape.ranked = False
        unknown = [shape for shape in todo if not shape.remembered]
        work = [work_for(shape, self._wanted(shape, shape.thorough)) for shape in unknown]

        def tell(done: int, total: int) -> None:
            progress("baselines", done, total, f"compiled {done} of {counted(total, 'baseline')}")

        if work:
            self.process.freeze()
            self.ahead.finish(work, tell, between, has_device=has_device)
        for shape in todo:
            self._load_baselines(shape, between)
        if todo and self.fleet.shares_stores:
            self._keep_files()

    def begin_baselines(self, shapes: list[OpenShape], *, thorough: bool, every: bool) -> None:
        """Starts what :meth:`compile_baselines` will wait for, in the background."""
        work = []
        for shape in (shape for shape in shapes if shape.lacks(thorough=thorough, every=every)):
            counts = shape.thorough or thorough
            if every or shape.distrusted or not self._recall(shape, counts):
                work.append(work_for(shape, self._wanted(shape, counts)))
        self.ahead.begin(work, first=True)

    def every_baseline(self, shape: OpenShape) -> list[Baseline]:
        """Every way to run the reference at a shape, without times."""
        baselines = self.fleet.baselines(self.precision)
        # A graph copies its inputs and outputs, which at these sizes takes longer than any launch.
        return [b for b in baselines if not (shape.large and MODES[b.mode].graph)]

    def _wanted(self, shape: OpenShape, thorough: bool) -> list[Baseline]:
        """The baselines that count at a shape, in a screen or a ``thorough`` evaluation."""
        return [one for one in self.every_baseline(shape) if thorough or not MODES[one.mode].slow]

    def open_lean(self, process: RoleProcess, dims: Dims) -> OpenShape:
        """Opens a shape in a process that only compiles for it."""
        return self._open_in(process, dims, 1, lean=True)

    def close_lean(self, opened: OpenShape) -> None:
        """Releases the memory of such a shape on both ends."""
        self._forget_draws(opened.inputs)
        opened.side.close(collect=False)

    def compile_in_background(self, splits: dict[str, list[Dims]]) -> None:
        """Starts with what a job will need: the quick modes at visible shapes, then all modes at those that it chooses by."""
        if os.environ.get(COMPILE_AHEAD) == "0":
            return
        todo = []
        for split, slow in (("visible", False), ("validation", True)):
            shapes = splits.get(split) or []
            for dims, size in zip(shapes, self.caps.sizes(shapes) if shapes else [], strict=True):
                modes = [(b.name, MODES[b.mode]) for b in self.fleet.baselines(self.precision)]
                names = [name for name, mode in modes if mode.compiler and (slow or not mode.slow)]
                needs_bytes = _CALL_COSTS * (size or 0) + 3 * self.weights_bytes + _CONTEXT_BYTES
                todo.append(Work(dims, tuple(names), needs_bytes))
        self.ahead.begin(todo)

    def _recall(self, shape: OpenShape, thorough: bool) -> list[Baseline]:
        """The baselines with the times that an earlier referee measured; empty if there are none."""
        baselines = self._wanted(shape, thorough)
        names = [baseline.name for baseline in baselines]
        times = self.fleet.baseline_store.get(
            self.fleet.environment(), self.task.sha256, freeze_dims(shape.dims), names
        )
        # A baseline that failed then may work now, and without it every candidate would look better.
        if times is None or any(
            why and not why.startswith(autocast_baselines.BEYOND) for _, why in times.values()
        ):
            return []
        for baseline in baselines:
            baseline.median_us, baseline.failure = times[baseline.name]
        return baselines

    def rank_baselines(self, shapes: list[OpenShape], progress: Progress) -> bool:
        """Times every baseline at shapes that are not ranked yet. The caller holds the device's clock.

        Remembered times stay if a few rounds of the fastest two confirm them.

        Returns:
            Whether all are ranked. If not, some remembered times were not confirmed. Load all baselines there
            (:meth:`compile_baselines`, which takes seconds and no clock) and call this again.
        """
        todo = [shape for shape in shapes if not shape.ranked]
        for done, shape in enumerate(todo):
            progress("baselines", done, len(todo), f"measuring baselines at {shape.where}")
            if shape.remembered:
                if not baseline_ranking.still_holds(self.fleet, shape):
                    shape.baselines, shape.remembered, shape.distrusted = [], False, True
                    continue
            else:
                baseline_ranking.rank(self.fleet, shape)
                times = {b.name: (b.median_us, b.failure) for b in shape.baselines}
                self.fleet.baseline_store.put(
                    self.fleet.environment(), self.task.sha256, freeze_dims(shape.dims), times
                )
            shape.ranked = True
        return all(shape.ranked for shape in shapes)

    def prepare(self, side: Side, baseline: Baseline, *, anew: bool = False) -> str:
        """Makes a baseline ready to be called at a shape; compiles it if needed, or ``anew``.

        Returns its `Baseline.code`.
        """
        side.own()
        request = {
            "shape": side.key,
            "variant": baseline.name,
            "mode": baseline.mode,
            "threads": baseline.threads,
            "autocast": AUTOCAST_DTYPES.get(self.precision),
            "anew": anew,
        }
        return baseline.told(side.process.request_json(protocol.VARIANT, request, _COMPILE_SECONDS))

    def _prepare(self, shape: OpenShape, baseline: Baseline, *, anew: bool = False) -> None:
        baseline.failure = ""
        try:
            baseline.code = self.prepare(shape.side, baseline, anew=anew)
        except RoleFailure as failure:
            if shape.side.process.dead or baseline.mode == "eager":
                raise
            baseline.failure = failure.sentence

    def _load_baselines(self, shape: OpenShape, between: Callable[[], None] = lambda: None) -> None:
        if not shape.remembered:
            shape.baselines = self._wanted(shape, shape.thorough)
        wanted = shape.contenders if shape.remembered else shape.baselines
        for baseline in wanted:
            self._prepare(shape, baseline)
            if baseline.failure:
                # Compilers of several shapes share a cache and have corrupted each other's files. Without this
                # baseline every candidate would look better, so try again now that no compiler runs.
                self._prepare(shape, baseline)
            if baseline.failure and MODES[baseline.mode].compiler:
                # Or one of these files is damaged.
                self._prepare(shape, baseline, anew=True)
        autocast_baselines.drop_wrong(shape, wanted)
        if not shape.remembered:  # there, contenders are loaded and nothing else may become one
            shape.find_same()
        for baseline in wanted:
            if baseline.failure:
                self.unavailable[baseline.name] = baseline.failure
            between()
        if shape.remembered and any(baseline.failure for baseline in wanted):
            # It worked for the earlier referee. The second fastest must be measured again.
            shape.remembered = False
            self._load_baselines(shape, between)
        self.process.freeze()

    def close(self) -> None:
        """Ends the reference process and the compiling processes."""
        self.ahead.close()
        self.process.close()
        for shape in self.shapes.values():
            self.forget(shape.inputs, shape.side)
        self.shapes = {}
        self.fleet.trim(collect=True)
        self.memory.give_back()


def _names(value: Any, space: Space) -> list[str]:
    return [name for name in value if name in space] if isinstance(value, list) else []
