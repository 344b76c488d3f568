"""Members with planted properties for the dispatcher's modes: fast, slow at some sizes, wrong at some, writing to inputs."""

from __future__ import annotations

from agent.candidates import Candidate
from tests.agent.bundle.building import MEMBER, TASK

#: The same function as `TASK` with work that no member needs: there is something to gain that a busy machine does not hide.
SLOW_TASK = TASK.replace(
    "return x * self.weight", "for _ in range(12):\n            x = x * 1.0\n        return x * self.weight"
)
FAST = Candidate(MEMBER, "human", "fast")


def planted(label: str, line: str, origin: str = "llm") -> Candidate:
    """A member that executes a line before it computes the right result; its list of calls is `calls_<label>`."""
    source = MEMBER.replace("calls", f"calls_{label}")
    return Candidate(source.replace("if self.packed", f"{line}\n        if self.packed"), origin, label)


#: Right everywhere, and some 1.4 times as slow as the reference from 512 rows on: too near to be left out at first sight.
SLOW_IF_LARGE = planted("sluggish", "for _ in range(18 * (x.shape[0] >= 512)): x * 1.0")
#: Wrong at 48 rows alone, where it is the fastest.
WRONG_AT_48 = planted("wrong", "if x.shape[0] == 48: return x.clone()")
WRITES = planted("writes", "x.view(-1)[0] += 1.0")
