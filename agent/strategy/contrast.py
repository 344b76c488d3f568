"""What a policy of our own is asked after its first answer: the prompt that it was trained on, with what was measured since.

Other models go on in a conversation, with the referee's words about their file. `rl` trains no such turns: it shows two accepted files
whose speeds differ and asks for another one (`agent.strategy.exemplars`). So a policy is asked that, in the follow-up of a first
attempt and in the rounds of the search, where each proposal shows a draw of its own. There is no critic, and a failure is not shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from agent.candidates import Candidate
from agent.errors import ProviderError
from agent.extraction import extract
from agent.prompts.markers import holds_markers
from agent.strategy.beam import editable
from agent.strategy.exemplars import Exemplars, Judged, draw
from agent.strategy.novelty import likeness

if TYPE_CHECKING:
    import random

    from agent.providers.client import ModelClient
    from agent.spec import ModelChoice
    from agent.strategy.beam import Parent
    from agent.strategy.conversation import Round

#: A prompt with two files, with the faster one, and with none, where more leaves no room in what the model reads.
_MOST_ASKED = 3


def drawn(judged: Sequence[Judged], generator: random.Random) -> tuple[Judged, ...]:
    """Accepted candidates to show, from the slower to the faster: two of different speed, one where all are alike, or none.

    A compiler mode has nothing to learn from, and a file with a chat format's marks in it would end the turn where it stands.
    """
    shown = [one for one in judged if editable(one) and not holds_markers(one.candidate.source)]
    return draw(shown, generator).successes


def varies(choice: ModelChoice) -> bool:
    """Whether a model that is asked the same again may answer otherwise. A checkpoint of ours without a temperature does not."""
    return bool(choice.temperature) or (choice.temperature is None and choice.provider != "policy")


def fewer(shown: Sequence[Judged]) -> tuple[Judged, ...]:
    """What is left to show where a prompt was too long: the fastest alone, then none."""
    return tuple(shown[-1:]) if len(shown) > 1 else ()


class Contrast:
    """Asks a policy for one candidate beside those that it is shown; stands in the search where `Conversation` does for others.

    Args:
        client: asks, and waits for the answers.
        origin: of what is proposed.
        model: index of the model at the client.
        step: names of its requests begin with it.
    """

    def __init__(self, client: ModelClient, origin: str, model: int, step: str) -> None:
        self._client = client
        self._origin = origin
        self._model = model
        self._step = step

    @staticmethod
    def requests(step: str) -> tuple[str, ...]:
        """Names of all requests that a proposal may make."""
        return tuple(f"{step}/code/{number}" for number in range(1, _MOST_ASKED + 1))

    def propose(self, this: Round, parent: Parent, shown: Exemplars) -> Candidate | None:
        """The candidate; None when the budget has no room, or the model says nothing new.

        Raises:
            ProviderError: when a request fails.
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
            files = fewer(files)  # they left no room for an answer, as training sees to it
        tried = {one.candidate.sha256: one.candidate.source for one in this.judged}
        if source is None or reply is None or likeness(source, tried).repeats(parent.mode):
            return None
        label = f"{self._client.models[self._model].model} round {this.number}"
        beside = f"beside {len(files)} measured" if files else "with nothing measured to show"
        note = f"{beside} ({reply.model}, {reply.prompt_tokens} + {reply.completion_tokens} tokens)"
        lineage = files[-1].candidate.sha256 if files else None
        return Candidate(source, self._origin, label, lineage, note)
