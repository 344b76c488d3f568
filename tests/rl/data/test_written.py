"""Short Triton programs of generated modules: every operation is right, and the file is short and names what it computes."""

from __future__ import annotations

from pathlib import Path

import pytest

from rl.data.lowering import NotMade
from rl.data.modules import OPERATIONS, generate
from rl.data.written import program_of, written
from rl.errors import ConfigError
from tests.agent.compiler.extraction import run_program
from tests.agent.kernels.test_rewriting import INTERPRETED

COUNT = 90

PROGRAM = """
import importlib.util, json, sys, types, torch
from rl.data.modules import OPERATIONS, generate, task_of
from rl.data.written import program_of

def load(name, text):
    open(name + ".py", "w").write(text)
    spec = importlib.util.spec_from_file_location(name, name + ".py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

sys.modules["kernelbench_tasks"] = types.SimpleNamespace(Dim=lambda *_, **__: None)
torch.manual_seed(0)
found = {}
for index in map(int, sys.argv[1].split()):
    module = generate(0, index)
    reference = load(f"reference{index}", task_of(module).source)
    candidate = load(f"candidate{index}", program_of(module, (1, 2, 4)[index % 3], 4))
    sizes = {name: 37 if name == "cols" else 5 if name == "rows" else 2 for name, _ in module.dims}
    arguments = {name: size for name, size in sizes.items() if f"{name}: int" in task_of(module).source.split("get_init_inputs(")[1]}
    init = reference.get_init_inputs(**arguments)
    model, new = reference.Model(*init), candidate.ModelNew(*init)
    for weight in model.parameters():
        weight.data.normal_()
    new.load_state_dict(model.state_dict(), strict=True)
    given = [3 * one for one in reference.get_inputs(**sizes)]
    with torch.no_grad():
        wanted, exact, result = model(*given), model.double()(*(one.double() for one in given)), new(*given)
    most = 4 * (wanted - exact).abs().max() + 2e-6 * exact.abs().max()
    found[index] = wanted.shape == result.shape and bool((result - exact).abs().max() <= most)
print(json.dumps(found))
"""


def test_each_operation_is_computed(tmp_path: Path) -> None:
    modules = [generate(0, index) for index in range(COUNT)]
    assert {name for one in modules for name in one.operations} == set(OPERATIONS)
    # One module for each operation with each number of rows a program.
    chosen = {
        (name, index % 3): index
        for index, one in enumerate(modules)
        if "linear" not in one.operations
        for name in one.operations
    }
    found = run_program(tmp_path, INTERPRETED + PROGRAM, " ".join(map(str, sorted(set(chosen.values())))))
    assert len(found) > 25
    assert [index for index, right in found.items() if not right] == []


def test_a_module_has_two_short_programs_and_a_product_none() -> None:
    assert not list(written("cpu", 0, 0))
    with pytest.raises(ConfigError, match="--short writes Triton programs, which --device cpu does not run"):
        next(written("cpu", 0, 5))
    made = list(written("cuda", 0, COUNT))
    assert len({one.id for one in made}) == len(made) == 2 * COUNT
    for one in made:
        if "linear" in one.operations:
            with pytest.raises(NotMade, match="a product of matrices"):
                one.make()
        else:
            assert len(one.make()) < 4500
    index = next(index for index in range(COUNT) if "linear" not in generate(0, index).operations)
    assert len({program_of(generate(0, index), rows, 4) for rows in (1, 2)}) == 2
