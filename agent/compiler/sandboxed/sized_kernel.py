"""A generated kernel with code of its own per size. Its text goes into candidates, which alone run it."""

from __future__ import annotations

import math
import re

from torch._inductor.async_compile import AsyncCompile


class SizedKernel:
    """A kernel that Inductor made for any size, compiled anew where the compiler gains by knowing more about the sizes.

    Divisions of indices by sizes may take most of a kernel's time: the first sizes get code with their values in it, as
    with `torch.compile(dynamic=False)`. Without divisions one fact counts, that a size is a multiple of 16: without it
    elements are loaded one at a time. Further sizes, and small tensors, share the code for any size.

    Args:
        multiples: without divisions, the sizes that may be multiples of 16; None where the source divides by sizes.
    """

    MOST, MUCH, REMEMBERED = 16, 1 << 18, 1024
    VALUE = re.compile(r"^ +\w*tmp\w* = (?!tl\.load\().*\bks\d.*$", re.MULTILINE)

    def __init__(self, name, source, multiples=None):
        self.name, self.source, self.multiples = name, source, multiples
        self.head = re.search(rf"^def {name}\((.*)\):$", source, re.MULTILINE)
        self.args = self.head[1].split(", ")
        self.sizes = [one for one in self.args if re.fullmatch(r"ks\d+|\w+numel", one)]
        #: Each text that was compiled, by what it knows of the sizes (`()`: nothing); the kernel for each recent call.
        self.own, self.recent = {}, {}

    def run(self, *args, stream):
        self.chosen(args).run(*args, stream=stream)

    def chosen(self, args):
        """The kernel for a call's arguments."""
        sizes = args[-len(self.sizes) :]
        kernel = self.recent.get(sizes)
        if kernel is None:
            if len(self.recent) >= self.REMEMBERED:
                self.recent.clear()
            kernel = self.recent[sizes] = self.made(sizes)
        return kernel

    def made(self, sizes):
        named = dict(zip(self.sizes, sizes, strict=True))
        numels = {name: size for name, size in named.items() if name.endswith("numel")}
        known, text = (), self.source
        if math.prod(numels.values()) >= self.MUCH:
            if self.multiples is not None:
                known = tuple(name for name in self.multiples if named[name] % 16 == 0)
                text = self.with_multiples(known)
            elif max(sizes) < 1 << 31:
                known, text = sizes, self.with_constants(numels, sizes)
        if known not in self.own and sum(map(bool, self.own)) >= self.MOST:
            known, text = (), self.source
        if known not in self.own:
            self.own[known] = self.compiled(text)
        return self.own[known]

    def with_multiples(self, names):
        """The source with these sizes marked as multiples of 16, as Triton itself marks arguments where it can see them."""
        marks = "".join(f"({self.args.index(name)},): [['tt.divisibility', 16]], " for name in names)
        return self.source.replace("'configs': [{", f"'configs': [{{{marks}", 1)

    def with_constants(self, numels, sizes):
        """The source with its sizes as constants. Indices of a tensor fit in 32 bits; what is computed of sizes as a value may not."""
        constants = dict(zip(self.sizes, sizes, strict=True))

        def wide(line):
            return re.sub(r"\bks\d+\b", lambda name: f"tl.full([], {constants[name[0]]}, tl.int64)", line[0])

        body = self.VALUE.sub(wide, self.source[self.head.end() :])
        lines = [
            f"    {name} = {size}" if name in numels else f"    {name} = tl.full([], {size}, tl.int32)"
            for name, size in constants.items()
        ]
        text = "\n".join([self.source[: self.head.end()], *lines]) + body
        hints = {
            name.removesuffix("numel"): 1 << max(size - 1, 0).bit_length() for name, size in numels.items()
        }
        return re.sub(r"(?<=size_hints=)\{[^}]*\}", repr(hints), text, count=1)

    def compiled(self, text):
        kernel = AsyncCompile().triton(self.name, text, device_str="cuda")
        return kernel.result() if hasattr(kernel, "result") else kernel
