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
from agent.extraction import extract, unfolded
from agent.prompts.markers import holds_markers
from agent.strategy.beam import editable
from agent.strategy.exemplars import draw
from agent.strategy.novelty import likeness

if TYPE_CHECKING:
    import random

    from agent.providers.client import ModelClient
    from agent.spec import ModelChoice
    from agent.strategy.conversation import Proposal, Round

#: Tries per proposal: with two files, with the faster one, and with none, if more do not fit in the model's context.
_MOST_ASKED = 3


def drawn(judged: Sequence[Judged], generator: random.Random) -> tuple[Judged, ...]:
    """Accepted candidates to show, slower first: two of different speed, one if all are alike, or none.

    Skips compiler modes, which have nothing to teach, and files with chat-format markers, which would end the turn early.
    """
    shown = [one for one in judged if editable(one) and not holds_markers(one.candidate.shown)]
    return draw(shown, generator).successes


def varies(choice: ModelChoice) -> bool:
    """Whether repeating a prompt can give a different answer. Our checkpoints without a temperature are deterministic."""
    return bool(choice.temperature) or (choice.temperature is None and choice.provider != "policy")


def fewer(shown: Sequence[Judged]) -> tuple[Judged, ...]:
    """The files to show after a prompt was too long: only the fastest, then none."""
    return tuple(shown[-1:]) if len(shown) > 1 else ()


def ask_policy(client: ModelClient, origin: str, this: Round, one: Proposal) -> Candidate | None:
    """One candidate of a policy, given exemplars, as `Conversation.propose` for other models; None if there is no new one.

    Raises:
        ProviderError: if a request fails.
    """
    files = one.shown.successes
    source, reply = None, None
    for number in range(1, _MOST_ASKED + 1):
        try:
            reply = client.answer(f"{one.step}/code/{number}", one.model, this.retold(files))
        except ProviderError as error:
            if error.kind != "no_room" or not files:
                raise
            files = fewer(files)
            continue
        if reply is None:
            return None
        found = extract(reply.text, reply.finish)
        client.count(found.problem or "candidate")
        source = found.source
        if found.problem != "truncated" or not files:
            break
        files = fewer(files)  # the files left no room for an answer; training avoids such prompts
    tried = {known.candidate.sha256: known.candidate.shown for known in this.judged}
    if source is None or reply is None or likeness(source, tried).repeats(one.parent.mode):
        return None
    label = f"{client.models[one.model].model} round {this.number}"
    beside = f"beside {len(files)} measured" if files else "with nothing measured to show"
    note = f"{beside} ({reply.model}, {reply.prompt_tokens} + {reply.completion_tokens} tokens)"
    lineage = files[-1].candidate.sha256 if files else None
    return Candidate(unfolded(source), origin, label, lineage, note)
