"""Questions with options: pick one, or pick several."""

import inspect
import random
import re
from dataclasses import dataclass, field, replace
from string import ascii_lowercase

from .feedback import Feedback

_OPTION = re.compile(r"^- \[([x ])\] ", re.MULTILINE)
_CODE = re.compile(r"(```.*?```)", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Option:
    """One option, whether it is right, and the feedback for picking it. Its repr shows only the text."""

    text: str
    feedback: str = field(repr=False)
    right: bool = field(default=False, repr=False)


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A question with one right option, or with several if `several` is set. Answers are the options' letters."""

    prompt: str
    options: tuple[Option, ...]
    several: bool = False

    def __post_init__(self) -> None:
        texts = [option.text for option in self.options]
        if not 2 <= len(set(texts)) == len(texts) <= len(ascii_lowercase):
            raise ValueError(f"{self.prompt!r} has the options {texts}. Give it 2 to 26, no two alike.")
        rights = sum(option.right for option in self.options)
        if rights == 0 or (rights > 1 and not self.several):
            raise ValueError(f"{self.prompt!r} marks {rights} options right, not one (or more, if several).")

    @classmethod
    def read(cls, text: str, *, several: bool = False) -> "Choice":
        """Return the choice that Markdown describes. Line ends in a paragraph do not count.

        Which rank updates a parameter?

        - [x] Its owner
          > Only the owner has the state.
        - [ ] Rank 0
          > Each rank updates its part.
        """
        prompt, *parts = _OPTION.split(inspect.cleandoc(text))
        code = _CODE.split(prompt.strip())
        options = []
        for mark, part in zip(parts[::2], parts[1::2], strict=True):
            option, feedback = (" ".join(words.split()) for words in part.split("\n  > "))
            options.append(Option(text=option, feedback=feedback, right=mark == "x"))
        code[::2] = (re.sub(r"(?<=\S)\n(?=\S)", " ", words) for words in code[::2])
        return cls(prompt="".join(code), options=tuple(options), several=several)

    @property
    def lettered(self) -> dict[str, Option]:
        """The options by letter, in the order in which they are shown."""
        return dict(zip(ascii_lowercase, self.options, strict=False))

    @property
    def instruction(self) -> str:
        return "Choose every option that is right." if self.several else "Choose one."

    @property
    def solution(self) -> str:
        """A right answer, such as "b" or "a, c"."""
        return ", ".join(letter for letter, option in self.lettered.items() if option.right)

    def text(self) -> str:
        options = [f"{letter}) {option.text}" for letter, option in self.lettered.items()]
        return "\n".join([self.prompt, *options, self.instruction])

    def shuffled(self, rng: random.Random) -> "Choice":
        return replace(self, options=tuple(rng.sample(self.options, len(self.options))))

    def answer(self, given: str) -> Feedback:
        """Mark letters: "b" or "b)", or "a, c" if several may be chosen."""
        letters = sorted(set(given.casefold()) - set(", ()."))
        unknown = [letter for letter in letters if letter not in self.lettered]
        if unknown:
            return Feedback(
                status="unread",
                message=f"There is no option {', '.join(unknown)}. Choose from {', '.join(self.lettered)}.",
            )
        if not letters or (len(letters) > 1 and not self.several):
            count = len(letters) or "none"
            return Feedback(status="unread", message=f"You chose {count}. {self.instruction}")
        return Feedback(
            status="right" if ", ".join(letters) == self.solution else "wrong",
            message=self._explain(letters),
            reading="; ".join(self.lettered[letter].text for letter in letters),
        )

    def _explain(self, letters: list[str]) -> str:
        """Return the feedback of each option that was picked; of right ones that were not, only their number."""
        if not self.several:
            return self.lettered[letters[0]].feedback
        found = sum(self.lettered[letter].right for letter in letters)
        missing = sum(option.right for option in self.options) - found
        too_many = len(letters) - found
        counts = [f"{n} {what}" for n, what in ((too_many, "too many"), (missing, "missing")) if n]
        summary = ", ".join(counts) if counts else "That is all of them"
        sentences = [f"{letter}) {self.lettered[letter].feedback}" for letter in letters]
        return "\n".join([f"{summary}.", *sentences])
