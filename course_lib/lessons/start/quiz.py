"""Two questions that show how a quiz works."""

import random

from ...quizzes import Choice, Numeric, Question, Quiz


def result_of_a_rank(rng: random.Random) -> Numeric:
    world_size = rng.choice([6, 8, 10])
    rank = rng.randrange(4, world_size)
    return Numeric(
        prompt=f"```python\nrun = World({world_size}).run(lambda: 10 * dist.get_rank())\n```\n\nWhat is `run[{rank}]`?",
        expected=10 * rank,
        tolerance=0,
        right="`run[rank]` is what that rank returned.",
        wrong="Replace `dist.get_rank()` by the rank's number, then multiply by 10.",
        mistakes=(
            (10 * (rank - 1), "Ranks count from 0."),
            (10 * world_size, "That is ten times the number of all ranks. Use the rank's own number."),
            (rank, "That is the rank's number; the function returns ten times as much."),
        ),
    )


QUIZ = Quiz(name="start", title="Start here", questions=(
    Question(id="result-of-a-rank", ask=result_of_a_rank),
    Question(id="one-rank-fails", ask=Choice.read("""
        One of four ranks raises an exception while the others wait for it. What happens in this course?

        - [x] All ranks are stopped, and one message names the rank that failed and the line
          > This happens at once. The next run works as if nothing had happened.
        - [ ] The others wait until you restart the kernel
          > Without the course they may wait for minutes. A world stops them at once.
        - [ ] The others go on without the rank that failed
          > They cannot, because they wait for a call that the failed rank will never make.
        - [ ] The rank is started again
          > Nothing is repeated. You fix the line and run the cell again.""")),
))
