"""Follow-up prompts for our own policies: the prompt they were trained on, with candidates measured since.

Other models continue a conversation that includes the referee's verdict on their file. `rl` does not train such turns: it shows
two accepted files of different speed and asks for another one (`agent.strategy.exemplars`). A policy therefore gets that prompt in
the follow-up of a first attempt and in search rounds, where each proposal draws its own files. There is no critic, and failures are
not shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from agent.candidates import Candidate, Judged
from agent.errors import ProviderError
from agent.extraction import extract
from agent.prompts.markers import holds_markers
from agent.strategy.beam import editable
from agent.strategy.exemplars import Exemplars, draw
from agent.strategy.novelty import likeness

if TYPE_CHECKING:
    import random

    from agent.providers.client import ModelClient
    from agent.spec import ModelChoice
    from agent.strategy.beam import Parent
    from agent.strategy.conversation import Round

#: Tries per proposal: with two files, with the faster one, and with none, if more do not fit in the model's context.
_MOST_ASKED = 3


def drawn(judged: Sequence[Judged], generator: random.Random) -> tuple[Judged, ...]:
    """Accepted candidates to show, slower first: two of different speed, one if all are alike, or none.

    Skips compiler modes, which have nothing to teach, and files with chat-format markers, which would end the turn early.
    """
    shown = [one for one in judged if editable(one) and not holds_markers(one.candidate.source)]
    return draw(shown, generator).successes


def varies(choice: ModelChoice) -> bool:
    """Whether repeating a prompt can give a different answer. Our checkpoints without a temperature are deterministic."""
    return bool(choice.temperature) or (choice.temperature is None and choice.provider != "policy")


def fewer(shown: Sequence[Judged]) -> tuple[Judged, ...]:
    """The files to show after a prompt was too long: only the fastest, then none."""
    return tuple(shown[-1:]) if len(shown) > 1 else ()


class Contrast:
    """Asks a policy for one candidate, given exemplars; replaces `Conversation`, which the search uses for other models.

    Args:
        client: sends requests and waits for answers.
        origin: origin of the proposed candidates.
        model: index of the model at the client.
        step: prefix of its request names.
    """

    def __init__(self, client: ModelClient, origin: str, model: int, step: str) -> None:
        self._client = client
        self._origin = origin
        self._model = model
        self._step = step

    @staticmethod
    def requests(step: str) -> tuple[str, ...]:
        """Names of all requests that a proposal may send."""
        return tuple(f"{step}/code/{number}" for number in range(1, _MOST_ASKED + 1))

    def propose(self, this: Round, parent: Parent, shown: Exemplars) -> Candidate | None:
        """The candidate; None if the budget has no room or the answer has no new candidate.

        Raises:
            ProviderError: if a request fails.
        """
        files = shown.successes
        source, reply = None, None
        for request in self.requests(self._step):
            try:
                reply = self._client.answer(request, self._model, this.retold(files))
            except ProviderError as error:
                if error.kind != "no_room" or not files:
                    raise
                files = fewer(files)
                continue
            if reply is None:
                return None
            found = extract(reply.text, reply.finish)
            self._client.count(found.problem or "candidate")
            source = found.source
            if found.problem != "truncated" or not files:
                break
            files = fewer(files)  # the files left no room for an answer; training avoids such prompts
        tried = {one.candidate.sha256: one.candidate.source for one in this.judged}
        if source is None or reply is None or likeness(source, tried).repeats(parent.mode):
            return None
        label = f"{self._client.models[self._model].model} round {this.number}"
        beside = f"beside {len(files)} measured" if files else "with nothing measured to show"
        note = f"{beside} ({reply.model}, {reply.prompt_tokens} + {reply.completion_tokens} tokens)"
        lineage = files[-1].candidate.sha256 if files else None
        return Candidate(source, self._origin, label, lineage, note)
