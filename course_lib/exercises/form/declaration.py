"""The declaration of an exercise: what a lesson's file says about it. Every variation is an edit of the reference.

exercise = Declaration("lesson.task", title=..., task=..., hints=..., explanation=..., draw=...)

@exercise                              the reference; its signature and docstring start the cell of the learner
exercise.edit("id", {old: new}, ...)   a known mistake: the reference with edits, and the message for the learner
@exercise.mistake                      a known mistake that is a function of its own; its docstring is the message
exercise.variant_edit("id", {...})     a right answer written differently, as edits
@exercise.variant                      the same, as a function of its own
@exercise.start                        for a repair: the program that the learner repairs
exercise.start_edit({...})             the same, as edits of the reference
"""

import random
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import permutations
from typing import Any, TypeVar

from .source import Source, compiled, edited, paragraphs, prose

Solution = Callable[..., Any]
AnySolution = TypeVar("AnySolution", bound=Solution)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One draw of a check.

    Attributes:
        world_size: number of ranks; 0 for a solution that needs no world and is called once.
        args: returns, for a rank, the positional arguments of the solution there. It makes new, equal arguments on
            every call, because a run may change them. It is called on the rank itself.
        what: the case in a few words, for the learner, without its number of ranks: "10 elements".
        drawn: the seed, the number and the kind of random stream that it was drawn from; set by the check.
    """

    world_size: int
    args: Callable[[int], tuple[Any, ...]]
    what: str = ""
    drawn: tuple[Any, ...] = ()

    @property
    def about(self) -> str:
        """The case in a few words: "3 ranks, 10 elements"."""
        ranks = f"{self.world_size} rank{'s' * (self.world_size > 1)}" if self.world_size else ""
        return ", ".join(filter(None, [ranks, self.what]))


@dataclass(frozen=True, kw_only=True, eq=False)
class Mistake:
    """A known wrong solution.

    Attributes:
        id: short and kebab-case, unique in its exercise: `sum-for-mean`.
        message: what the code does, and why the task asks for something else. Then "Next:" and one next step.
        solution: code that makes the mistake. The check runs it like the learner's: if both behave the same, the
            learner made this mistake. So it must behave the same on every run (no uninitialised memory), and end (no
            endless loop).
        edits: of the reference, if the mistake is made of them.
    """

    id: str
    message: str
    solution: Solution
    edits: Mapping[str, str] = field(default_factory=dict)

    @property
    def sentence(self) -> str:
        """The message before "Next:"."""
        return self.message.partition("Next:")[0].strip()

    @property
    def action(self) -> str:
        """The next step."""
        return self.message.partition("Next:")[2].strip()


@dataclass(kw_only=True, eq=False)
class Declaration:
    """Everything that a lesson's file says about an exercise.

    Texts are triple-quoted Markdown: indentation and line ends inside a paragraph do not count.

    Attributes:
        name: lesson and task, `ranks.hello`.
        title: a heading of a few words.
        task: what to write.
        draw: makes a `Case` from a random stream and the number of the draw (0, 1, 2, ...). Draw 0 is the smallest
            meaningful case, because a learner sees it first.
        hints: one text, with a blank line between hints. From a question to nearly the code: question, concept, name
            of the function, nearly the code.
        explanation: why the reference is right; shown with the solution, and after a pass.
        rules: requirements besides equal results, such as `only_calls("send", "recv")`: see `checking/rules.py`.
        trial: `trial(solution, *args)` runs a solution on one rank and returns the value to compare; by default the
            value that `solution(*args)` returns. The value is plain: None, bools, numbers, strings, tensors, and lists,
            tuples and dicts of them.
        asynchronous: whether the solution starts calls and waits later. The check then looks for lines that use their
            tensors before the wait, which may have right results by chance.
        measured: whether the memory of each rank is measured, for rules that use it. A `trial` may `mark` moments.
        inputs_matter: whether the arguments must end up as the reference leaves them: untouched, or changed in place.
            False if a solution may use them as scratch space.
        tolerance: relative, for floating-point results.
        case_count: the number of cases that a check tries.
        answers: of an incident: the answers to the predictions in its lesson, by the names of the predictions. They are
            kept out of the lesson's cells, where a learner would see them.
        reference: a right solution, written to be read: the learner sees its source as the last hint.
        mistakes: the known wrong solutions.
        variants: right solutions written differently, by name; each entry returns its solution. A pass shows the
            first; the tests use all.
    """

    name: str = field(kw_only=False)
    title: str
    task: str
    draw: Callable[[random.Random, int], Case]
    hints: str | tuple[str, ...]
    explanation: str
    rules: Sequence[Callable[[Any], Any]] = ()  # `Rule`, which is defined on top of this module
    trial: Callable[..., Any] | None = None
    asynchronous: bool = False
    measured: bool = False
    inputs_matter: bool = True
    tolerance: float = 1e-5
    case_count: int = 6
    answers: Mapping[str, str | float] = field(default_factory=dict)
    reference: Solution = field(init=False)
    mistakes: list[Mistake] = field(init=False, default_factory=list)
    variants: dict[str, Callable[[], Solution]] = field(init=False, default_factory=dict)
    _start: str = field(init=False, default="    raise NotImplementedError\n")  # the body of the stub
    _start_edits: Mapping[str, str] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.task, self.explanation = prose(self.task), prose(self.explanation)
        self.hints = paragraphs(self.hints) if isinstance(self.hints, str) else self.hints

    # -- written above or below functions ----------------------------------------------------------------------------

    def __call__(self, reference: AnySolution) -> AnySolution:
        """Take the decorated function as the reference. The function stays as it is."""
        self.reference = reference
        return reference

    def start(self, function: AnySolution) -> AnySolution:
        """Take the body of the decorated function, instead of `raise NotImplementedError`, as the start of the cell."""
        self._start = Source.of(function).body
        return function

    def start_edit(self, edits: Mapping[str, str]) -> None:
        """Take the reference's body with `edits` as the start of the cell."""
        self._start = self._edited("start", edits).removeprefix(self._source.signature)
        self._start_edits = edits

    def mistake(self, function: AnySolution) -> AnySolution:
        """Take the decorated function as a known mistake; `asks_rank_zero` has the id `asks-rank-zero`."""
        self._add_mistake(_id(function), function.__doc__ or "", function)
        return function

    def edit(self, id: str, edits: Mapping[str, str], text: str) -> None:
        """Take the reference with `edits` as a known mistake.

        Args:
            id: of the mistake.
            edits: new text by old text; see `source.edited`. The docstring is left out of the search.
            text: the message.

        Raises:
            ValueError: an old text does not occur exactly once, or the message has no next step.
        """
        self._add_mistake(id, text, self._compiled(self._edited(id, edits), id), edits)

    def variant(self, function: AnySolution) -> AnySolution:
        """Take the decorated function as a right solution written differently."""
        self.variants[_id(function)] = lambda: function
        return function

    def variant_edit(self, id: str, edits: Mapping[str, str]) -> None:
        """Take the reference with `edits` as a right solution written differently."""
        self.variants[id] = partial(self._compiled, self._edited(id, edits), id)

    # -- derived -------------------------------------------------------------------------------------------------------

    @cached_property
    def stub(self) -> Solution:
        """The function that the notebook's cell starts with."""
        return self._compiled(self._stub_source, "stub")

    @property
    def cell(self) -> str:
        """The text of the notebook's cell."""
        return f'@exercise("{self.name}")\n{self._stub_source.rstrip()}'

    @property
    def solution(self) -> str:
        """The reference's source, without decorators."""
        return (self._source.signature + self._source.docstring + self._source.body).rstrip()

    @property
    def alternative(self) -> str:
        """The source of the first variant; empty if there is none."""
        source = next((Source.of(make()) for make in self.variants.values()), None)
        return (source.signature + source.body).rstrip() if source else ""

    @cached_property
    def pairs(self) -> tuple[Mistake, ...]:
        """Every two mistakes at once, if the second is an edit of the first."""
        found: dict[frozenset[str], Mistake] = {}
        for one, other in permutations([mistake for mistake in self.mistakes if mistake.edits], 2):
            id, ids = f"{one.id} + {other.id}", frozenset((one.id, other.id))
            with suppress(ValueError, SyntaxError):
                if ids not in found:
                    text = edited(self._edited(one.id, one.edits), other.edits)
                    solution = self._compiled(text, id)
                    found[ids] = Mistake(id=id, message=_both(one, other), solution=solution)
        return tuple(found.values())

    @property
    def faults(self) -> list[Mistake]:
        """The mistakes that the program to repair is made of."""
        return [one for one in self.mistakes if one.edits and one.edits.items() <= self._start_edits.items()]

    @property
    def _stub_source(self) -> str:
        return self._source.signature + self._source.docstring + self._start

    @cached_property
    def _source(self) -> Source:
        return Source.of(self.reference)

    def _edited(self, id: str, edits: Mapping[str, str]) -> str:
        try:
            return edited(self._source.signature + self._source.body, edits)
        except ValueError as error:
            raise ValueError(f"{self.name}, {id}: {error}") from None

    def _compiled(self, source: str, id: str) -> Solution:
        return compiled(source, self.reference, f"{self.name}, {id}")

    def _add_mistake(self, id: str, text: str, solution: Solution, edits: Mapping[str, str] | None = None) -> None:
        if text.count("Next:") != 1:
            raise ValueError(f'{self.name}, {id}: write "Next:" and one next step at the end of the message:\n{text}')
        self.mistakes.append(Mistake(id=id, message=prose(text), solution=solution, edits=edits or {}))


_RIGHT = re.compile(
    r"(?:^|(?<=\. ))(?:The|Your) [^,.]* (?:is|are) right\b[^,.]*(?:, (?:but|and) |\. (?:But )?|\.$)(.?)"
)
"""The part of a message that calls something right, which a second mistake can make false, and the letter after it."""


def _both(one: Mistake, other: Mistake) -> str:
    first, second = (_RIGHT.sub(lambda part: part[1].upper(), mistake.sentence) for mistake in (one, other))
    causes = f"Two mistakes at once. First: {_capital(first)} Second: {_capital(second)}"
    return f"{causes} Next: first, {one.action} Then {other.action}"


def _capital(sentence: str) -> str:
    return sentence[0].upper() + sentence[1:]


def _id(function: Solution) -> str:
    return function.__name__.replace("_", "-")
