"""Writes a program over rows as one C++ loop.

Sums, maxima, scans and sorts divide the work into passes over a block of rows that stays in the cache. What takes an exponential and
is needed in a later pass is kept beside it. `simd.h` has the functions.
"""

from __future__ import annotations

from typing import Any

import torch

from agent.kernels.cpu.row_reading import DOWN, PICK, SCANS, NotRows, Reader, Value

#: C++ of a function for vectors, and for single values.
FUNCTIONS = {
    "EXP(": ("exponential<LANES>(", "std::exp("),
    "SQRT(": ("square_root<LANES>(", "std::sqrt("),
    "TANH(": ("tangent<LANES>(", "std::tanh("),
    "ERF(": ("error_function<LANES>(", "std::erf("),
    "LOG(": ("logarithm<LANES>(", "std::log("),
    "NONE": ("V{}", "0.f"),  # subtracted, it makes a vector of a single value and changes no sign of zero
    "NUMBER": ("numbers<LANES>(at)", "static_cast<uint32_t>(index)"),
    "FLOAT(": ("to_float<LANES>(", "static_cast<float>("),
    "PLACE": ("positions<LANES>(at)", "static_cast<float>(index)"),
    "FAR": ("3e38f", "3e38f"),
}
#: Worth keeping for a later pass.
COSTLY = ("EXP(", "LOG(", "TANH(", "ERF(")
MOST_OF_PICK = 4000  # characters


def single(text: str) -> str:
    """C++ for single values."""
    for function, (_, one) in FUNCTIONS.items():
        text = text.replace(function, one)
    return text


class Writer:
    """Writes the C++ of a program, for a block of rows at a time."""

    def __init__(self, program: Reader) -> None:
        self.program = program
        self.kept: list[Value] = []
        self.lines: list[str] = []
        self._loaded: set[Value] = set()

    def text(self) -> str:
        """The body of `block(first, rows)`."""
        last = max(one.after for one in self.program.outputs)
        for after in range(last + 1):
            self._cols(after)
            joined: dict[str, list[Value]] = {}
            for value in self.program.values:
                if value.reduction and value.operands[0].after == after and after < last:
                    joined.setdefault(value.reduction, []).append(value)
            for join, values in joined.items():
                if join in (*SCANS.values(), DOWN):
                    self._scan(join, values)
                else:
                    self._pass(join, values)
        for place, out in enumerate(self.program.outputs):
            if out.kind == "full":
                body = self._body([out], f"return {self._name(out)};", set())
                self._row_loop(
                    f"row.template put<STREAM>(call.y{place} + start, [&](int64_t at) {{ {body} }});"
                )
            else:
                self.lines.append(
                    f"for (int r = 0; r < rows; ++r) call.y{place}[first + r] = {self._scalar(out)};"
                )
        return "\n".join(self.lines)

    def _row_loop(self, text: str) -> None:
        self.lines.append(
            f"for (int r = 0; r < rows; ++r) {{\nconst int64_t start = (first + r) * row.cols;\n{text}\n}}"
        )

    def _cols(self, after: int) -> None:
        """What is computed once for each row."""
        for value in self.program.values:
            if value.kind == "col" and value.text and not value.reduction and value.after == after:
                if value.text == PICK:
                    text = self._pick(*value.operands)
                else:
                    whole = bool(value.word)
                    text = single(value.text.format(*(self._scalar(one, whole) for one in value.operands)))
                self.lines.append(f"for (int r = 0; r < rows; ++r) {value.name}[r] = {text};")

    def _pick(self, x: Value, index: Value) -> str:
        """The element of a row at an index, which is computed anew from what is in memory. A wrong index reads nothing else."""
        place = f"static_cast<int64_t>(std::clamp({self._scalar(index)}, 0.f, count - 1.f))"
        return f"[&](int64_t index) {{ return {self._element(x)}; }}({place})"

    def _element(self, value: Value) -> str:
        if value.kind in ("col", "flat"):
            return self._scalar(value)
        if value in self.kept:
            return f"kept({self.kept.index(value)}, r)[index]"
        if not value.text:
            place = next(place for place, one in self.program.inputs if one is value)
            start = "" if value.kind == "row" else "(first + r) * row.cols + "
            return f"static_cast<float>(call.x{place}[{start}index]{' != 0' if value.mask else ''})"
        if value.word or any(function in value.text for function in COSTLY):
            raise NotRows("an element by another function than its row")  # the two differ in the last place
        text = single(value.text.format(*(f"({self._element(one)})" for one in value.operands)))
        if len(text) > MOST_OF_PICK:
            raise NotRows("too much is computed anew for an element")
        return text

    def _pass(self, join: str, values: list[Value]) -> None:
        after = values[0].operands[0].after
        later = [
            one.operands[0] for one in self.program.values if one.reduction and one.operands[0].after > after
        ]
        needed = self._needed([*later, *(one for one in self.program.outputs if one.kind == "full")])
        keep = {
            one
            for one in self._needed([one.operands[0] for one in values])
            if any(function in one.text for function in COSTLY) and one in needed
        }
        names = [self._name(one.operands[0]) for one in values]
        if join == "sum":
            body = self._body([one.operands[0] for one in values], "", keep)
            result = f"std::array<V, {len(values)}>{{{', '.join(names)}}}"
            text = f"const auto found = row.template sums<{len(values)}>([&](int64_t at) {{ {body} return {result}; }});\n"
            text += "\n".join(f"{one.name}[r] = found[{place}];" for place, one in enumerate(values))
            self._row_loop(text)
        else:
            for one, name in zip(values, names, strict=True):
                body = self._body([one.operands[0]], f"return {name};", keep)
                join_text = f"[](auto a, auto b) {{ return {join}(a, b); }}"
                self._row_loop(f"{one.name}[r] = row.joined([&](int64_t at) {{ {body} }}, {join_text});")
        self.kept += [one for one in self.program.values if one in keep]

    def _scan(self, function: str, values: list[Value]) -> None:
        """Running values take the place of their operands, and are kept for what comes later."""
        for value in values:
            body = self._body([value.operands[0]], f"return {self._name(value.operands[0])};", set())
            to = f"kept({len(self.kept)}, r)"
            self._row_loop(
                f"row.write({to}, [&](int64_t at) {{ {body} }});\n{function}<LANES>({to}, row.cols);"
            )
            self.kept.append(value)

    def _needed(self, values: list[Value]) -> set[Value]:
        """The full and row values that are computed for these, down to what is kept."""
        found: set[Value] = set()
        left = list(values)
        while left:
            one = left.pop()
            if one not in found and one not in self.kept and one.kind in ("full", "row"):
                found.add(one)
                left += one.operands
        return found

    def _body(self, values: list[Value], end: str, keep: set[Value]) -> str:
        """Statements that compute some values at `at`."""
        needed, parts = self._needed(values), []
        for value in self.program.values:
            if value in needed:
                parts.append(f"const {'W' if value.word else 'V'} {value.name} = {self._vector(value)};")
                if value in keep:
                    parts.append(
                        f"store<LANES>(kept({len(self.kept) + self._place(value, keep)}, r) + at, {value.name});"
                    )
        return " ".join([*parts, end])

    def _place(self, value: Value, keep: set[Value]) -> int:
        return [one for one in self.program.values if one in keep].index(value)

    def _vector(self, value: Value) -> str:
        if not value.text:
            place = next(place for place, one in self.program.inputs if one is value)
            # The first pass over an input fetches its next rows, too.
            is_first = value.kind == "full" and value not in self._loaded
            self._loaded.add(value)
            load = "load_mask" if value.mask else "load_ahead" if is_first else "load"
            return f"{load}<LANES>(call.x{place} + {'at' if value.kind == 'row' else 'start + at'})"
        text = value.text.format(*(self._name(one, bool(value.word)) for one in value.operands))
        for function, (vector, _) in FUNCTIONS.items():
            text = text.replace(function, vector)
        return text

    def _name(self, value: Value, whole: bool = False) -> str:
        if value.kind in ("col", "flat"):
            return self._scalar(value, whole)
        if value in self.kept:
            return f"load<LANES>(kept({self.kept.index(value)}, r) + at)"
        return value.name

    def _scalar(self, value: Value, whole: bool = False) -> str:
        """What a row has one of; of whole numbers the lower 32 bits."""
        if value.kind == "flat":
            return self._scalar(value.operands[0])
        if not value.text:
            place = next(place for place, one in self.program.inputs if one is value)
            read = f"call.x{place}[first + r]"
            return f"static_cast<{'uint32_t' if whole else 'float'}>({read})" if value.place else read
        return f"{value.name}[r]"


def row_program(graph: torch.fx.Graph, tensors: int) -> dict[str, Any]:
    """A graph as C++.

    Args:
        graph: see `Reader`.
        tensors: how many of its placeholders are inputs; they come first.

    Returns:
        ``code``: C++ after `simd.h`; ``inputs``: places of the placeholders that it reads; ``main``: of the largest; ``outputs``:
        their kinds.

    Raises:
        NotRows: it is no row program; the message says why.
    """
    program = Reader(graph, tensors)
    writer = Writer(program)
    body = writer.text()
    types = {
        place: "uint8_t" if value.mask else "int64_t" if value.place else "float"
        for place, value in program.inputs
    }
    inputs = sorted(types)
    cols = [one for one in program.values if one.kind == "col" and one.text]
    code = _FRAME.format(
        inputs=" ".join(f"const {types[place]} *x{place};" for place in inputs),
        outputs=" ".join(
            f"{'int64_t' if count else 'float'} *y{place};" for place, count in enumerate(program.counts)
        ),
        cols="\n  ".join(
            f"{'uint32_t' if one.word else 'float'} {one.name}[BLOCK_ROWS] = {{}};" for one in cols
        ),
        kept=len(writer.kept),
        body=body,
    )
    kinds = [
        f"{one.kind} count" if count else one.kind
        for one, count in zip(program.outputs, program.counts, strict=True)
    ]
    return {"code": code, "inputs": inputs, "main": program.main, "outputs": kinds}


_FRAME = """
namespace {{

struct Call {{
  {inputs}
  {outputs}
  int64_t rows, cols;
}};

template <typename AnyRow, bool STREAM>
void work(const Call& call, const AnyRow& row, std::bool_constant<STREAM>, int64_t begin, int64_t end) {{
  constexpr int LANES = AnyRow::LANES;
  using V = vec<LANES>;
  using W = uvec<LANES>;
  const float count = static_cast<float>(row.cols);
  const int64_t size = block_rows(row);
  static thread_local std::vector<float> memory;
  if ({kept}) memory.resize({kept} * size * row.cols);
  [[maybe_unused]] const auto kept = [&](int64_t which, int64_t r) {{ return memory.data() + (which * size + r) * row.cols; }};
  {cols}
  for (int64_t first = begin; first < end; first += size) {{
    const int rows = static_cast<int>(std::min(size, end - first));
{body}
  }}
}}

}}  // namespace

extern "C" void rows(const char* arguments) {{
  Call call;
  std::memcpy(&call, arguments, sizeof call);
  split_rows(call.rows, call.cols, 12 * 1024, [&](int64_t begin, int64_t end) {{
    with_row(call.cols, too_large_to_cache(call.rows * call.cols),
             [&](const auto& row, auto streaming) {{ work(call, row, streaming, begin, end); }});
  }});
}}
"""
