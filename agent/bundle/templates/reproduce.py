"""Re-checks this bundle on your machine: is optimized.py correct, and is it faster?

    python reproduce.py             about a minute
    python reproduce.py --quick     a few seconds of measuring, without torch.compile

Needs torch and the files beside it. Correctness: optimized.py and the reference in task.py get the same random weights
and inputs, and both are compared with the reference in float64. Speed: the reference in eager mode, the reference under
torch.compile and optimized.py run in three processes that take turns, so that a machine that slows down slows all.

This is the WEAK check: it runs optimized.py without a sandbox, in a process that holds the clock and the answers, and
believes what it sees. The strong check, which does not trust the code it measures, is

    kernelwright evaluate task.py optimized.py

Exit code: 0 the claims hold within the tolerance, 1 they do not, 2 they could not be checked here.
"""

import argparse
import copy
import functools
import importlib.util
import inspect
import json
import math
import os
import random
import statistics
import subprocess
import sys
import time
import types
import warnings

HERE = os.path.dirname(os.path.abspath(__file__))
ERROR_FACTOR = 4.0  # optimized.py may be this many times as far from float64 as the reference itself
TIER_FACTOR = 8.0  # and so many times as far as the reference in float64 whose products have operands of the task's precision
# Where the operands of products stand among the arguments of an operation.
MATRICES = dict.fromkeys(("mm", "bmm", "mv", "dot", "linear"), (0, 1))
MATRICES |= dict.fromkeys(("addmm", "baddbmm", "addmv"), (1, 2))
CUDNN = {"convolution": (0, 1), "_convolution": (0, 1), "_cudnn_rnn": (0, 1, 3)}


# --------------------------------------------------------------------------------------------- one worker process


class Dim:
    """Stand-in for the evaluator's declaration of a dimension, which task.py may import."""

    def __init__(self, min, max, multiple_of=1, default=None, gpu=None):
        self.min, self.max, self.multiple_of, self.default, self.gpu = min, max, multiple_of, default, gpu


class Choice:
    """Stand-in, like Dim."""

    def __init__(self, *values, default=None):
        self.values, self.default = values, values[0] if default is None else default


def load(name):
    module = types.ModuleType("kernelbench_tasks")
    module.Dim, module.Choice = Dim, Choice
    sys.modules.setdefault("kernelbench_tasks", module)
    spec = importlib.util.spec_from_file_location(name, os.path.join(HERE, f"{name}.py"))
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[name] = loaded
    spec.loader.exec_module(loaded)
    return loaded


def call(function, dims):
    wanted = inspect.signature(function).parameters
    return function(**{name: value for name, value in dims.items() if name in wanted})


def build(task, dims, seed, device):
    """The reference with redrawn weights and a few sets of inputs, the same in every process for the same seed."""
    import torch

    torch.manual_seed(seed)
    reference = (
        task.Model(*call(task.get_init_inputs, dims)) if hasattr(task, "get_init_inputs") else task.Model()
    )
    with torch.no_grad():
        for name, tensor in [*reference.named_parameters(), *reference.named_buffers()]:
            if tensor.is_floating_point():
                positive = name.endswith("running_var")
                tensor.add_(torch.rand_like(tensor) if positive else 0.1 * torch.randn_like(tensor))
    inputs = []
    for _ in range(3):
        drawn = call(task.get_inputs, dims)
        inputs.append([value.to(device) if isinstance(value, torch.Tensor) else value for value in drawn])
    if getattr(task, "DIRECTION", "forward") == "forward_backward":
        inputs = [[leaf(value) for value in values] for values in inputs]
    return reference.to(device).train(getattr(task, "TRAINING", False)), inputs


def leaf(value):
    """An input whose gradient is wanted, where it can have one."""
    able = hasattr(value, "requires_grad_") and (value.is_floating_point() or value.is_complex())
    return value.detach().requires_grad_() if able else value


def worker(kind, device, threads, precision):
    """Answers JSON requests on stdin, one a line: prepare a shape, check it, time calls."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever the modules print must not get between the answers
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    torch.backends.cuda.matmul.allow_tf32 = precision.get("matrix_tf32", False)
    torch.backends.cudnn.allow_tf32 = precision.get("cudnn_tf32", True)
    bits = precision.get("mantissa_bits")
    products = {**CUDNN, **(MATRICES if precision.get("tier") != "default" else {})} if bits else {}
    if threads:
        torch.set_num_threads(threads)
    task = load("task")
    optimized = load("optimized") if kind == "optimized" else None
    shapes = {}
    backward = getattr(task, "DIRECTION", "forward") == "forward_backward"

    def step(module, values, start=None, without=torch.inference_mode):
        """What a call gives: results, gradients where the task asks for them, and with `start`, what buffers were before, buffers."""
        buffers = dict(module.named_buffers()) if module.training and start else {}
        for name, buffer in buffers.items():
            buffer.copy_(start[name])
        if not backward:
            with without():
                return [*flat(module(*values)), *(buffer.clone() for buffer in buffers.values())]
        results = flat(module(*values))
        roots = [one for one in results if one.requires_grad]
        leaves = [one for one in (*values, *module.parameters()) if getattr(one, "requires_grad", False)]
        found = torch.autograd.grad(
            roots, leaves, [upstream(one.shape, one.dtype) for one in roots], materialize_grads=True
        )
        return [one.detach() for one in (*results, *found)] + [one.clone() for one in buffers.values()]

    @functools.cache  # the same eighths for every module, which all dtypes can hold
    def upstream(shape, dtype):
        return (torch.randint(-16, 17, shape, generator=torch.Generator().manual_seed(1)) / 8).to(
            device, dtype
        )

    def prepare(number, dims, seed):
        began = time.perf_counter()
        reference, inputs = build(task, dims, seed, device)
        if kind == "optimized":
            arguments = call(task.get_init_inputs, dims) if hasattr(task, "get_init_inputs") else []
            module = optimized.ModelNew(*arguments)
            module.load_state_dict(reference.state_dict(), strict=True)
            module = module.to(device).train(reference.training)
        else:
            module = torch.compile(reference, dynamic=False) if kind == "compile" else reference
        start = {name: buffer.clone() for name, buffer in reference.named_buffers()}
        for values in inputs:
            step(module, values)
        runs = seen(module, inputs[0]) if hasattr(module, "kernelwright_explain") else ""
        shapes[number] = (module, inputs, reference, start)
        return {"runs": runs, "seconds": time.perf_counter() - began}

    def seen(module, values):
        """What such a call runs, in words; of a member it is counted whether it did, forwards and backwards."""
        with torch.set_grad_enabled(backward):
            runs = module.kernelwright_explain(*values)
        if runs.startswith("reference") or not hasattr(module, "kernelwright_trace"):
            return runs
        with module.kernelwright_trace() as ran:
            step(module, values)
        return runs if len(ran) == 1 + backward else "reference: no kernel was seen to run in a call"

    def check(number):
        """Distance to float64 of the module and of the reference over all inputs, of the output that keeps least to its bound."""
        module, inputs, reference, start = shapes[number]
        exact = copy.deepcopy(reference)._apply(widened)
        nothing = dict.fromkeys(("module", "reference", "tier", "scale", "epsilon"), 0.0)
        outputs, same_kind = {}, True
        for values in inputs:
            wide = [widened(one) if isinstance(one, torch.Tensor) else one for one in copy.deepcopy(values)]
            wide = [leaf(one) for one in wide] if backward else wide
            truth, mine, theirs = (
                step(exact, wide, start),
                step(module, values, start),
                step(reference, values, start),
            )
            tiered = truth
            if products:
                # Outside of inference mode, where products are seen as such and not as a convolution's wrapper.
                with Rounding():
                    tiered = step(copy.deepcopy(exact), copy.deepcopy(wide), start, torch.no_grad)
            results = zip(truth, mine, theirs, tiered, strict=True)
            for index, (right, got, usual, coarse) in enumerate(results):
                same = got.shape == usual.shape and got.dtype == usual.dtype
                same_kind = same_kind and same and same_odd_values(got, usual, right)
                if not same:
                    continue
                inexact = got.is_floating_point() or got.is_complex()
                worst = outputs.setdefault(index, dict(nothing))
                worst["epsilon"] = torch.finfo(got.dtype).eps if inexact else 0.0
                for name, distance in distances(got, usual, coarse, right).items():
                    worst[name] = max(worst[name], distance)
        worst = max(outputs.values(), key=lambda one: one["module"] - allowed(one), default=nothing)
        return {**worst, "same_kind": same_kind}

    class Rounding(TorchDispatchMode):
        """Within it, operands of products keep as many bits as the task's precision leaves them."""

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            places = products.get(function._schema.name.removeprefix("aten::"), ())
            args = [rounded(value) if place in places else value for place, value in enumerate(args)]
            return function(*args, **(kwargs or {}))

    def rounded(value):
        if isinstance(value, (list, tuple)):
            return [rounded(one) for one in value]
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        mantissa, exponent = torch.frexp(value)
        steps = 2.0 ** (bits + 1)
        return torch.where(
            torch.isfinite(value), torch.ldexp(torch.round(mantissa * steps) / steps, exponent), value
        )

    def widened(tensor):
        if tensor.is_complex():
            return tensor.to(torch.complex128)
        return tensor.double() if tensor.is_floating_point() else tensor

    def number(tensor):
        """As numbers that can be subtracted: float8 and booleans cannot."""
        return tensor.to(torch.complex128) if tensor.is_complex() else tensor.double()

    def beyond(usual, right):
        """Where float64 holds what the dtype cannot, such as float64's own lowest number."""
        inexact = usual.is_floating_point() or usual.is_complex()
        right = number(right)
        return torch.isfinite(right) & (right.abs() > (torch.finfo(usual.dtype).max if inexact else math.inf))

    def same_odd_values(got, usual, right):
        """Whether what cannot be compared by distance stands where the reference has it, as in what a mask leaves out."""
        odd = beyond(usual, right)
        got, usual = number(got), number(usual)
        odd = odd | ~(torch.isfinite(got) & torch.isfinite(usual))
        return bool(((got == usual) | (torch.isnan(got) & torch.isnan(usual)))[odd].all())

    def distances(got, usual, coarse, right):
        counted = ~beyond(usual, right)
        got, usual, coarse, right = number(got), number(usual), number(coarse), number(right)
        counted = counted & torch.isfinite(got) & torch.isfinite(usual) & torch.isfinite(right)
        # A value that is the same everywhere, such as -1e9 where something is masked, says nothing of how large all else is.
        counted = counted & ~((got == right) & (usual == right))
        coarse = torch.where(torch.isfinite(coarse), coarse, right)
        pairs = {"module": got - right, "reference": usual - right, "tier": coarse - right, "scale": right}
        return {
            name: apart[counted].abs().max().item() if counted.any() else 0.0 for name, apart in pairs.items()
        }

    def flat(value):
        if isinstance(value, torch.Tensor):
            return [value]
        items = value.values() if isinstance(value, dict) else value
        return [tensor for item in items for tensor in flat(item)]

    def timed(number, calls):
        module, inputs, _, _ = shapes[number]
        run = step if backward else lambda module, values: module(*values)
        with torch.inference_mode(not backward):
            run(module, inputs[0])
            if device == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
            for index in range(calls):
                run(module, inputs[index % len(inputs)])
            if device == "cuda":
                torch.cuda.synchronize()
            return {"us": (time.perf_counter() - began) / calls * 1e6}

    operations = {"prepare": prepare, "check": check, "timed": timed}
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = operations[request.pop("do")](**request)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


# ------------------------------------------------------------------------------------------------ the main process


class Worker:
    """A worker process and the pipe to it."""

    def __init__(self, kind, device, threads, precision):
        command = [sys.executable, os.path.abspath(__file__), "--worker", kind, "--device", device]
        command += ["--threads", str(threads), "--precision", json.dumps(precision)]
        self.kind = kind
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=HERE
        )

    def send(self, **request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()

    def receive(self):
        line = self.process.stdout.readline()
        if not line:
            return {"error": f"the {self.kind} process ended with code {self.process.wait()}"}
        return json.loads(line)

    def ask(self, **request):
        self.send(**request)
        return self.receive()

    def stop(self):
        self.process.kill()
        self.process.wait()


def chosen_shapes(held_out, count):
    """Some of the held-out shapes, from quick to slow; those that take long to build are left out."""
    rows = [row for row in held_out.get("shapes", []) if row.get("timed") and row.get("speedup")]
    rows = [row for row in rows if row["baseline_us"] < 50_000] or rows
    rows.sort(key=lambda row: row["baseline_us"])
    if len(rows) <= count:
        return rows
    return [rows[round(index * (len(rows) - 1) / (count - 1))] for index in range(count)]


def measure(workers, number, seconds):
    """Median time per call of each worker in microseconds, and the ratios of each turn."""
    calls = {}
    for worker in workers:
        first = worker.ask(do="timed", number=number, calls=2)
        if "error" in first:
            return None
        calls[worker.kind] = max(2, min(2000, int(0.01 / (first["us"] * 1e-6))))
    times = {worker.kind: [] for worker in workers}
    end = time.monotonic() + seconds
    order = list(workers)
    while time.monotonic() < end or len(times[order[0].kind]) < 5:
        random.shuffle(order)
        for worker in order:
            time.sleep(0.01)  # OpenMP threads of the worker before may still be spinning
            times[worker.kind].append(worker.ask(do="timed", number=number, calls=calls[worker.kind])["us"])
    return times


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer shapes, no torch.compile")
    parser.add_argument(
        "--tolerance", type=float, default=0.3, help="how far below the claim is still a pass (0.3 = 30 %%)"
    )
    parser.add_argument("--device", default=None, help=argparse.SUPPRESS)
    parser.add_argument("--threads", type=int, default=0, help="CPU threads; default: as in the evidence")
    parser.add_argument("--worker", default=None, help=argparse.SUPPRESS)
    parser.add_argument("--precision", type=json.loads, default={}, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        warnings.simplefilter("ignore", UserWarning)
        worker(options.worker, options.device, options.threads, options.precision)
        return 0
    with open(os.path.join(HERE, "evidence.json")) as file:
        evidence = json.load(file)
    return check_bundle(evidence, options)


def check_bundle(evidence, options):
    device = options.device or evidence["device"]
    there = evidence.get("environment") or {}
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = options.threads or min(int(there.get("threads") or 0) or cores, cores)
    held_out = next((one for one in evidence["verdicts"] if one["phase"] == "held_out"), {})
    rows = chosen_shapes(held_out, 2 if options.quick else 4)
    print(f"{evidence['job']}: {evidence['reason']}")
    print("weak check without a sandbox; the strong one is: kernelwright evaluate task.py optimized.py\n")
    if not rows:
        print("cannot check: the evidence holds no timed held-out shape")
        return 2
    kinds = ("optimized", "eager") if options.quick else ("optimized", "eager", "compile")
    workers = [Worker(kind, device, threads, evidence.get("precision") or {}) for kind in kinds]
    try:
        return compare(rows, workers, evidence, options, f"{there.get('device_name')}", threads)
    finally:
        for one in workers:
            one.stop()


def compare(rows, workers, evidence, options, name_there, threads):
    seed = int.from_bytes(os.urandom(4), "little")
    ready = prepare_all(rows, workers, seed)
    problems, fallbacks, now, claimed = [], 0, [], []
    print(
        f"here: {threads} thread{'s' if threads != 1 else ''}; there: {name_there}; speedup = best baseline over optimized.py"
    )
    print(
        f"{'shape':<34}{'error/ref':>10}{'eager':>10}{'compile':>10}{'optimized':>10}{'here':>8}{'evidence':>10}"
    )
    for number, row in enumerate(rows):
        shape = ", ".join(f"{name}={value}" for name, value in row["dims"].items()) or "as given"
        failed = {
            kind: answers[number]["error"] for kind, answers in ready.items() if "error" in answers[number]
        }
        if "optimized" in failed or "eager" in failed:
            problems.append(f"{shape}: {failed.get('optimized') or failed['eager']}")
            continue
        answer = workers[0].ask(do="check", number=number)
        factor, wrong = judge_error(answer)
        if wrong:
            problems.append(f"{shape}: {wrong}")
        runs = ready["optimized"][number]["runs"]
        if runs.startswith("reference") and "fastest choice" not in runs:
            fallbacks += 1
            problems.append(f"{shape}: the kernel does not run here ({runs})")
        able = [one for one in workers if one.kind not in failed]
        times = measure(able, number, 0.7 if options.quick else 1.5)
        if times is None:
            problems.append(f"{shape}: timing failed")
            continue
        median = {kind: statistics.median(values) for kind, values in times.items()}
        baselines = [kind for kind in median if kind != "optimized"]
        best = min(baselines, key=lambda kind: median[kind])
        speedup = statistics.median(
            base / mine for base, mine in zip(times[best], times["optimized"], strict=True)
        )
        now.append(speedup)
        claimed.append(row["speedup"])
        print(
            f"{shape:<34}{factor:>10}{median['eager']:>10.1f}{median.get('compile', math.nan):>10.1f}"
            f"{median['optimized']:>10.1f}{speedup:>7.2f}x{row['speedup']:>9.2f}x"
        )
    print("(times in microseconds per call; nan = not measured)")
    return conclude(now, claimed, problems, fallbacks, options)


def prepare_all(rows, workers, seed):
    """Build every shape in every process; the processes work at the same time."""
    ready = {one.kind: [] for one in workers}
    for number, row in enumerate(rows):
        for one in workers:
            try:
                one.send(do="prepare", number=number, dims=row["dims"], seed=seed)
            except BrokenPipeError:
                pass  # the answer below says why
        for one in workers:
            ready[one.kind].append(one.receive())
    return ready


def judge_error(answer):
    """The error as a multiple of the reference's own, and what is wrong with it, if anything."""
    if "error" in answer:
        return "failed", answer["error"]
    if not answer["same_kind"]:
        return "wrong", "another shape or dtype than the reference, or not finite elsewhere"
    most = allowed(answer)
    factor = answer["module"] / answer["reference"] if answer["reference"] else 0.0
    text = f"{factor:.2f}" if answer["reference"] else "exact" if not answer["module"] else "inexact"
    wrong = answer["module"] > most
    return text, f"error {answer['module']:.3g} where {most:.3g} is allowed" if wrong else ""


def allowed(answer):
    """How far from float64 optimized.py may be."""
    rounding = 4 * answer["epsilon"] * answer["scale"]
    return ERROR_FACTOR * answer["reference"] + TIER_FACTOR * answer["tier"] + rounding


def conclude(now, claimed, problems, fallbacks, options):
    for problem in problems:
        print(f"problem: {problem}")
    if not now:
        print("\ncould not be checked here")
        return 2
    here, there = statistics.geometric_mean(now), statistics.geometric_mean(claimed)
    floor = there * (1 - options.tolerance)
    print(
        f"\ngeometric mean over these shapes: {here:.2f}x here, {there:.2f}x in the evidence, pass from {floor:.2f}x"
    )
    if fallbacks == len(now) == len(problems):
        print("result: could not be checked; optimized.py runs the reference on this machine")
        return 2
    if problems or here < floor:
        print("result: the claims do NOT hold here")
        return 1
    print("result: the claims hold here")
    return 0


if __name__ == "__main__":
    sys.exit(main())
