"""A generated kernel with code of its own per size. Its text goes into candidates, which alone run it."""

from __future__ import annotations

import math
import re

from torch._inductor.async_compile import AsyncCompile


class SizedKernel:
    """A kernel that Inductor made for any size, compiled anew for sizes at which it has much to do.

    It divides indices by sizes, which may take most of its time unless the compiler knows them. The first sizes get
    code of their own, as with `torch.compile(dynamic=False)`; further ones, and small tensors, share the code for any size.
    """

    MOST, MUCH = 16, 1 << 18
    VALUE = re.compile(r"^ +\w*tmp\w* = (?!tl\.load\().*\bks\d.*$", re.MULTILINE)

    def __init__(self, name, source):
        self.name, self.source, self.own, self.shared = name, source, {}, None
        self.head = re.search(rf"^def {name}\((.*)\):$", source, re.MULTILINE)
        self.sizes = [one for one in self.head[1].split(", ") if re.fullmatch(r"ks\d+|\w+numel", one)]

    def run(self, *args, stream):
        sizes = args[-len(self.sizes) :]
        kernel = self.own.get(sizes)
        if kernel is None:
            kernel = self.made(sizes)
        kernel.run(*args, stream=stream)

    def made(self, sizes):
        numels = {name: size for name, size in zip(self.sizes, sizes, strict=True) if name.endswith("numel")}
        if len(self.own) < self.MOST and math.prod(numels.values()) >= self.MUCH and max(sizes) < 1 << 31:
            text = self.with_constants(numels, sizes)
            return self.own.setdefault(sizes, self.compiled(text))
        if self.shared is None:
            self.shared = self.compiled(self.source)
        return self.shared

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
