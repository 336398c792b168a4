"""A small quiz that the tests take: one question of each kind."""

import random

from course_lib.quizzes import Choice, Numeric, Question, Quiz

ADAM_FP32_BYTES = 4 + 4 + 8  # parameter, gradient, two moments


def held_by_stage2(rng: random.Random) -> Numeric:
    billions, ranks = rng.choice([3, 7, 13]), rng.choice([4, 8, 16])
    params = billions * 10**9
    sharded_bytes, whole_bytes = 14 * params / ranks, 2 * params
    return Numeric(
        prompt=f"A model of {billions} B parameters trains with `AdamW` in mixed precision on {ranks} ranks, "
        "its gradients and optimizer states sharded. How much does one rank hold?",
        expected=whole_bytes + sharded_bytes,
        unit="GiB",
        right="Two bytes of each parameter stay whole, fourteen are cut.",
        wrong="Count the bytes of one parameter, then say which of them are sharded.",
        mistakes=(
            (16 * params, "You sharded nothing."),
            (
                8 * params + 8 * params / ranks,
                "You sharded 8 bytes; the fp32 master weights and the gradients are sharded too.",
            ),
        ),
    )


QUIZ = Quiz(
    name="sample",
    title="Ranks & shards",
    questions=(
        Question(id="after-all-reduce", ask=Choice.read("""
            Four ranks call `all_reduce` on a tensor each.
            What does rank 2 hold then?

            - [x] The sum of all four
              > Every rank holds all of it.
            - [ ] A quarter of the sum
              > That is `reduce_scatter`.
            - [ ] All four tensors, one after the other
              > That is `all_gather`.
            - [ ] Its own tensor, as before
              > The call works in place.""")),
        Question(id="whole-in-stage1", ask=Choice.read("""
            What does every rank hold whole?

            ```python
            engine = zero.Stage1(model)
            ```

            - [x] The parameters
              > Each rank runs the whole model.
            - [x] The gradients
              > Stage 2 is the one that cuts them.
            - [ ] The moments of `Adam`
              > These are what stage 1 cuts.""", several=True)),
        Question(id="held-by-stage2", ask=held_by_stage2),
        Question(
            id="adam-bytes",
            ask=Numeric(
                prompt="How many bytes does all-fp32 `Adam` keep for one parameter, all told?",
                expected=ADAM_FP32_BYTES,
                unit="bytes",
                tolerance=0,
                right="Four for the parameter, four for its gradient, eight for the two moments.",
                wrong="Add parameter, gradient and both moments.",
            ),
        ),
    ),
)


def secrets() -> list[str]:
    """Every sentence of the quiz that only an answer may bring out."""
    told = []
    for problem in (question.problem() for question in QUIZ.questions):
        if isinstance(problem, Choice):
            told += [option.feedback for option in problem.options]
        else:
            told += [problem.right, problem.wrong, *(feedback for _, feedback in problem.mistakes)]
    assert len(told) == 4 + 3 + 4 + 2
    return told
