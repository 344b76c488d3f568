"""All arms of exhibit A, replayed on a table of measured cells: no referee runs, every reward was measured before.

What an arm writes is looked up. A text that is no program of the grammar has no cell and counts as a failure; how many such there were is reported. All arms
of a seed start from the same random weights and learn from the same supervised rows, with or without exemplars in them. Exhibit B trains and tests
arms by the same functions in a world that asks a referee instead (`experiments.dialect.live`).
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from transformers import PreTrainedTokenizerFast

from experiments.dialect import seen
from experiments.dialect.cells import Table
from experiments.dialect.learning import GrpoSettings, Learner, Question, SftSettings
from experiments.dialect.model import REPLAY, ModelSize, Policy, build_policy, sample
from experiments.dialect.prompts import prompt
from experiments.dialect.seen import Choice, Seen
from experiments.dialect.tasks import Task
from experiments.dialect.tokenizer import build_tokenizer, check

#: Judged candidates per held-out task, in rounds: later rounds may show what earlier ones found.
CANDIDATES, ROUNDS = 8, 4
_HIGHEST_REWARD = 8.0
_LOWEST_SCORE = 0.05
#: Rounds of two after which a search for as many different candidates is ended.
_MOST_LOOKS = 24
#: Rounds of eight after which the supervised policy's search with a larger budget is ended, however little new it writes.
_MOST_ROUNDS = 32


@dataclass(frozen=True)
class Arm:
    """What an arm shows in its prompts, in supervised training, in reinforcement and when it is tested; and whether it is reinforced."""

    choice: Choice
    reinforced: bool


ARMS = {
    "sft": Arm(seen.none, False),
    "plain": Arm(seen.none, True),
    "contrastive": Arm(seen.contrastive, True),
    "random_exemplars": Arm(seen.uniform, True),
    "shuffled_scores": Arm(seen.shuffled, True),
    "frozen": Arm(seen.contrastive, False),
}
#: What needs no model.
REFERENCES = ("random_valid", "optimum")
SHAPINGS: dict[str, Callable[[float], float]] = {
    "raw": lambda speedup: min(speedup, _HIGHEST_REWARD),
    "log": lambda speedup: math.log(max(min(speedup, _HIGHEST_REWARD), _LOWEST_SCORE)),
}


@dataclass(frozen=True)
class ReplaySettings:
    """Of a replay; everything else is in the table.

    Attributes:
        model, sft, grpo: see there.
        tasks_per_step: questions of a step of reinforcement.
        dropout: share of prompts without exemplars, in training.
        drawn: programs drawn for a supervised row; the best is its target, the two in the middle are what it shows.
        shaping: from a speedup to a reward.
        copies: whether a program that its own prompt showed is paid; else it gets what a failure gets.
        episodes: of how many steps with the same tasks: exemplars of a step were found by the steps of its episode before
            it, and the first shows none, as in the rounds of a test. 0: whatever was found before.
        sized: whether prompts name the size of their task, beside the family.

    Copies and episodes are for learners that ask for one step after the other; TRL's loader asks ahead.
    """

    model: ModelSize = REPLAY
    sft: SftSettings = field(default_factory=SftSettings)
    grpo: GrpoSettings = field(default_factory=GrpoSettings)
    tasks_per_step: int = 16
    dropout: float = 0.25
    drawn: int = 4
    shaping: str = "raw"
    copies: bool = True
    episodes: int = 0
    sized: bool = True


@dataclass(frozen=True)
class Outcome:
    """An arm at a seed.

    Attributes:
        scores: speedups by held-out task, in the order they were judged; failures 0.
        different: the same of the first eight different texts: a repeat costs no evaluation. Empty where they were not looked for.
        outside: share of these that were no program of the grammar.
        trained_on: distinct (task, text) pairs judged in reinforcement.
        judged: distinct pairs judged in all, without what was looked at only to find eight different ones.
        rewards: mean reward by step.
        entropies: by step.
    """

    arm: str
    seed: int
    scores: dict[str, list[float]]
    outside: float
    trained_on: int = 0
    judged: int = 0
    rewards: list[float] = field(default_factory=list)
    entropies: list[float | None] = field(default_factory=list)
    different: dict[str, list[float]] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


class World:
    """A table made ready to be asked.

    Attributes:
        looks_longer: whether tests go on until there are as many different candidates as candidates: asking costs nothing here.

    Raises:
        TableUnusable: see :meth:`experiments.dialect.cells.Table.scores`.
        NotExact: the tokenizer does not give back the grammar's programs.
    """

    looks_longer = True

    def __init__(self, table: Table) -> None:
        self.grammar = table.grammar
        self.train, self.held_out = table.tasks()
        self._scores = table.scores()
        self.tokenizer: PreTrainedTokenizerFast = build_tokenizer(self.grammar)
        check(self.tokenizer, [(program.pieces, program.source) for program in self.grammar.programs])
        #: Tokens of the longest program, its end included.
        self.longest = 1 + max(len(program.pieces) for program in self.grammar.programs)

    def score(self, task: Task, text: str) -> float:
        """The measured speedup; 0 for failures and for what is no program of the task's family."""
        return self._scores.get((task.name, text), 0.0)

    def judge(self, tasks: Sequence[Task], texts: Sequence[str]) -> list[float | None]:
        """What each text is worth at its task: the speedup, 0 for failures, None for what could not be judged."""
        return [self.score(task, text) for task, text in zip(tasks, texts, strict=True)]

    def inside(self, task: Task, text: str) -> bool:
        """Whether a text has a cell."""
        return (task.name, text) in self._scores

    def accepted(self, task: Task) -> list[tuple[str, float]]:
        """(source, speedup) of all accepted programs, in the grammar's order."""
        sources = [program.source for program in self.grammar.of_family(task.family)]
        return [(source, self.score(task, source)) for source in sources if self.score(task, source) > 0]


def supervised_rows(
    world: World, choice: Choice, settings: ReplaySettings, seed: int, step: int
) -> list[tuple[str, str]]:
    """(prompt, program) pairs of a step. Tasks, programs and targets do not depend on the arm, only what prompts show does."""
    rows = []
    for place in range(settings.sft.batch):
        generator = random.Random(f"sft {seed} {step} {place}")  # noqa: S311 - draws that can be repeated
        task = generator.choice(world.train)
        accepted = world.accepted(task)
        drawn = sorted(
            generator.sample(accepted, min(settings.drawn, len(accepted))), key=lambda pair: pair[1]
        )
        middle = drawn[-3:-1] if generator.random() >= settings.dropout else []
        if choice is seen.none:
            middle = []
        elif choice is seen.shuffled and middle:
            dealt = generator.sample([score for _, score in drawn], len(middle))
            middle = [(source, score) for (source, _), score in zip(middle, dealt, strict=True)]
        rows.append((prompt(task, middle, sized=settings.sized), drawn[-1][0]))
    return rows


class WorldPractice:
    """Implements :class:`experiments.dialect.learning.Practice` on what a world says that texts are worth."""

    def __init__(self, world: World, choice: Choice, settings: ReplaySettings, seed: int) -> None:
        self._world = world
        self._choice = choice
        self._settings = settings
        self._seed = seed
        self._seen = Seen()
        self._shape = SHAPINGS[settings.shaping]
        self._shown: dict[str, set[str]] = {}
        self._begun = -1
        self.judged: set[tuple[str, str]] = set()

    def questions(self, step: int) -> list[Question]:
        """Tasks drawn for the step, each with its exemplars."""
        episode = step // self._settings.episodes if self._settings.episodes else step
        if self._settings.episodes and episode != self._begun:
            self._seen, self._begun = Seen(), episode
        generator = random.Random(f"tasks {self._seed} {episode}")  # noqa: S311
        count = min(self._settings.tasks_per_step, len(self._world.train))
        asked = []
        for task in generator.sample(self._world.train, count):
            own = random.Random(f"exemplars {self._seed} {step} {task.name}")  # noqa: S311
            bare = own.random() < self._settings.dropout
            shown = [] if bare else self._choice(self._seen.of(task.name), own)
            self._shown[task.name] = {source for source, _ in shown}
            asked.append(Question(task, prompt(task, shown, sized=self._settings.sized)))
        return asked

    def reward(self, tasks: Sequence[Task], completions: Sequence[str]) -> list[float | None]:
        """Shaped speedups; what was accepted may be shown from now on."""
        rewards: list[float | None] = []
        speedups = self._world.judge(tasks, completions)
        for task, text, speedup in zip(tasks, completions, speedups, strict=True):
            if speedup is None:
                rewards.append(None)
                continue
            self.judged.add((task.name, text))
            self._seen.add(task.name, text, speedup)
            copied = not self._settings.copies and text in self._shown.get(task.name, ())
            rewards.append(self._shape(0.0 if copied else speedup))
        return rewards


@dataclass(frozen=True)
class Examined:
    """What a policy wrote for held-out tasks: texts and scores by task, in order; what could not be judged is left out."""

    texts: dict[str, list[str]]
    scores: dict[str, list[float]]

    def first(self, count: int) -> Examined:
        """Its first candidates of each task."""
        return Examined(
            {name: found[:count] for name, found in self.texts.items()},
            {name: found[:count] for name, found in self.scores.items()},
        )

    def different(self) -> Examined:
        """Without repeats, and no more than :data:`CANDIDATES` of each task."""
        once: dict[str, dict[str, float]] = {name: {} for name in self.texts}
        for name, texts in self.texts.items():
            for text, score in zip(texts, self.scores[name], strict=True):
                once[name].setdefault(text, score)
        whole = Examined(
            {name: list(found) for name, found in once.items()},
            {name: list(found.values()) for name, found in once.items()},
        )
        return whole.first(CANDIDATES)


def examine(
    world: World,
    policy: Policy,
    choice: Choice,
    seed: int,
    rounds: int = ROUNDS,
    enough: int = 0,
    *,
    sized: bool = True,
) -> Examined:
    """Candidates for every held-out task; in each round two, shown what earlier rounds found at the same task.

    Args:
        world: where they are judged.
        policy: writes them.
        choice: what prompts show.
        seed: of exemplars and samples.
        rounds: for every task.
        enough: tasks with fewer different candidates than this have more rounds, up to a bound.
        sized: whether prompts name sizes.
    """
    memory = Seen()
    texts: dict[str, list[str]] = {task.name: [] for task in world.held_out}
    scores: dict[str, list[float]] = {task.name: [] for task in world.held_out}
    for number in range(max(rounds, _MOST_LOOKS if enough else 0)):
        asked = []
        for task in world.held_out:
            if number >= rounds and len(set(texts[task.name])) >= enough:
                continue
            own = random.Random(f"examine {seed} {number} {task.name}")  # noqa: S311
            question = prompt(task, choice(memory.of(task.name), own), sized=sized)
            asked += [(task, question)] * (CANDIDATES // ROUNDS)
        if not asked:
            break
        written = sample(policy, [question for _, question in asked], seed * 7_919 + number).texts
        speedups = world.judge([task for task, _ in asked], written)
        for (task, _), text, speedup in zip(asked, written, speedups, strict=True):
            if speedup is None:
                continue
            texts[task.name].append(text)
            scores[task.name].append(speedup)
            memory.add(task.name, text, speedup)
    return Examined(texts, scores)


def _distinct(examined: Examined) -> int:
    return sum(len(set(texts)) for texts in examined.texts.values())


def _outside(world: World, examined: Examined) -> float:
    flags = [not world.inside(task, text) for task in world.held_out for text in examined.texts[task.name]]
    return sum(flags) / max(len(flags), 1)


def run_arm(
    world: World,
    name: str,
    learner: Learner,
    settings: ReplaySettings,
    seed: int,
    supervised: dict[str, Any],
    place: str = "cpu",
) -> tuple[Outcome, Policy]:
    """Trains and tests an arm.

    Args:
        world: the table.
        name: of :data:`ARMS`.
        learner: whose trainer is used.
        settings: as they are.
        seed: of weights, rows, draws and samples.
        supervised: weights after supervised training, by what its rows showed; filled here, so that arms of a seed share them.
        place: where the model is, for torch.
    """
    arm = ARMS[name]
    policy = build_policy(world.tokenizer, settings.model, world.longest, seed)
    policy.model.to(place)
    # Exemplars of rows are the two in the middle, whether an arm later draws contrasting or random ones.
    shown = arm.choice if arm.choice in (seen.none, seen.shuffled) else seen.contrastive
    if shown.__name__ not in supervised:
        learner.imitate(
            policy, lambda step: supervised_rows(world, shown, settings, seed, step), settings.sft
        )
        supervised[shown.__name__] = {key: value.clone() for key, value in policy.model.state_dict().items()}
    policy.model.load_state_dict(supervised[shown.__name__])
    records = []
    practice = WorldPractice(world, arm.choice, settings, seed)
    if arm.reinforced:
        records = learner.reinforce(policy, practice, settings.grpo, seed)
    enough = CANDIDATES if world.looks_longer else 0
    looked = examine(world, policy, arm.choice, seed, enough=enough, sized=settings.sized)
    examined = looked.first(CANDIDATES)
    outcome = Outcome(
        name,
        seed,
        examined.scores,
        _outside(world, examined),
        len(practice.judged),
        len(practice.judged) + _distinct(examined),
        [record.reward for record in records],
        [record.entropy for record in records],
        looked.different().scores if world.looks_longer else {},
    )
    return outcome, policy


def search_longer(world: World, policy: Policy, seed: int, budget: int, *, sized: bool = True) -> Outcome:
    """The supervised policy's samples for held-out tasks until as many distinct candidates were judged as by another arm in all.

    Repeats cost nothing, there as here. A policy that has nothing new to write stops after a bounded number of rounds.
    """
    texts: dict[str, list[str]] = {task.name: [] for task in world.held_out}
    for number in range(_MOST_ROUNDS):
        more = examine(world, policy, seen.none, seed + 101 * (number + 1), sized=sized)
        for name, found in more.texts.items():
            texts[name] += found
        if sum(len(set(found)) for found in texts.values()) >= budget:
            break
    scores = {task.name: [world.score(task, text) for text in texts[task.name]] for task in world.held_out}
    whole = Examined(texts, scores)
    return Outcome("sft_longer", seed, scores, _outside(world, whole), judged=_distinct(whole))


def reference(world: World, name: str, seed: int) -> Outcome:
    """An arm without a model: ``random_valid`` draws accepted programs without repeats, ``optimum`` tries them all."""
    scores = {}
    for task in world.held_out:
        accepted = [speedup for _, speedup in world.accepted(task)]
        generator = random.Random(f"{name} {seed} {task.name}")  # noqa: S311
        scores[task.name] = (
            [max(accepted)]
            if name == "optimum"
            else generator.sample(accepted, min(CANDIDATES, len(accepted)))
        )
    judged = sum(map(len, scores.values()))
    return Outcome(name, seed, scores, 0.0, judged=judged, different=scores)


def compared_with(
    world: World, learner: Learner, settings: ReplaySettings, seed: int, outcomes: Sequence[Outcome]
) -> list[Outcome]:
    """The supervised policy with the budget of a seed's most expensive arm, and the references.

    Args:
        world: the table.
        learner: of the arms; the supervised policy is made once more, and is the same.
        settings: of the arms.
        seed: of the arms.
        outcomes: of all arms.
    """
    supervised: dict[str, Any] = {}
    _, policy = run_arm(world, "sft", learner, settings, seed, supervised)
    budget = max(outcome.judged for outcome in outcomes)
    longer = search_longer(world, policy, seed, budget, sized=settings.sized)
    return [longer, *(reference(world, name, seed) for name in REFERENCES)]


def mean_score(outcome: Outcome) -> float:
    """Mean speedup of all samples, failures 0."""
    every = [score for scores in outcome.scores.values() for score in scores]
    return sum(every) / len(every)
