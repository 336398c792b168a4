"""The quiz of the lesson on long sequences and experts."""

import random

from ...quizzes import Choice, Numeric, Question, Quiz


def bytes_of_the_ring(rng: random.Random) -> Numeric:
    ranks, tokens, width = rng.choice([(4, 4096, 1024), (8, 8192, 1024), (8, 2048, 4096)])
    block = 2 * tokens * width * 2
    return Numeric(
        prompt=f"{ranks} ranks have {tokens:,} tokens each. Keys and values have {width:,} elements a token, each, in "
        "bf16. How much does a rank send in the forward of one layer's ring attention?",
        expected=(ranks - 1) * block,
        unit="MB",
        right="N − 1 sends of a block; a block is keys and values, 2 bytes an element.",
        wrong="How large is a block? How many rounds of the ring send one?",
        mistakes=(
            (ranks * block, "In the last round nothing has to travel."),
            ((ranks - 1) * block / 2, "Keys and values travel, not only one of them."),
            (2 * (ranks - 1) * block, "bf16 has 2 bytes an element."),
            (block, "That is one round."),
        ),
    )


def share_of_the_last(rng: random.Random) -> Numeric:
    ranks = rng.choice([2, 8, 16])
    return Numeric(
        prompt=f"A long sequence is cut in order over {ranks} ranks, with a causal mask. Which share of all pairs of a "
        "query and a key that it sees belongs to the last rank's queries?",
        expected=(2 * ranks - 1) / ranks**2,
        unit="%",
        tolerance=0.02,
        right="The first r ranks have (r/N)² of the pairs; the last one has the rest, (2N − 1)/N².",
        wrong="Which share of the pairs do the first N − 1 ranks have together? Think of the area of a triangle.",
        mistakes=(
            (1 / ranks, "That would be balanced, as with zigzag."),
            (2 / ranks, "Nearly: its own block is only half full."),
        ),
    )


def merged(rng: random.Random) -> Numeric:
    few, many = rng.choice([(2, 6), (2, 8), (3, 9)])
    low, high = rng.choice([(0, 8), (4, 12)])
    return Numeric(
        prompt=f"All scores of a query are equal. Over {few} keys its result is {low}, over {many} other keys {high}. "
        "What is its result over all these keys?",
        expected=(few * low + many * high) / (few + many),
        right="With equal scores, the sums of exp(score) are as the numbers of keys.",
        wrong="Each result is a mean. How much does it count, if exp(score) is the same for every key?",
        mistakes=(
            (low + high, "Each result is a mean already; their sum is too large."),
            ((low + high) / 2, "That weighs both equally. The second has more keys."),
        ),
    )


QUIZ = Quiz(name="context", title="Long sequences and experts", questions=(
    Question(id="what-merges", ask=merged),
    Question(id="ring-bytes", ask=bytes_of_the_ring),
    Question(id="last-share", ask=share_of_the_last),
    Question(id="backward", ask=Choice.read("""
        Why does ring attention compute the scores again in backward?

        - [x] Otherwise each rank keeps every block that came, and their scores
          > Then each rank holds the whole sequence, and more ranks do not help.
        - [ ] Autograd cannot follow a merge of two softmaxes
          > It can. It keeps what it needs for that.
        - [ ] The other ranks' queries have changed
          > Nothing changes between forward and backward.
        - [ ] It saves bytes on the network
          > It costs bytes: every block travels again.""")),
    Question(id="mean-loss", ask=Choice.read("""
        Each rank takes the mean loss of its own targets, and the ranks' gradients are averaged. When is this the
        gradient of the mean over all targets?

        - [x] If equally many targets count on every rank
          > Then a mean of means is the mean. Padding and lengths that do not divide break it.
        - [ ] Always
          > A token counts more on a rank with fewer targets.
        - [ ] If the sequence is cut as a zigzag
          > This balances work, not the number of targets that count.""")),
    Question(id="ring-or-heads", ask=Choice.read("""
        Which of these are reasons to choose the ring, and not an all-to-all of heads?

        - [x] The model has fewer heads than there are ranks
          > The all-to-all gives each rank whole heads.
        - [x] Eight query heads share one head of keys and values
          > The ring sends keys and values only, and these are small.
        - [ ] It sends fewer bytes with many ranks
          > The ring sends about as much for every number of ranks, the all-to-all less with more ranks.
        - [ ] It needs no balancing of the causal mask
          > It does: zigzag. With whole heads, every rank has the same pairs.""", several=True)),
    Question(id="idle-expert", ask=Choice.read("""
        In one step, no token chooses the expert of rank 2. What does rank 2 do?

        - [x] It makes all calls, with no rows from others
          > An all-to-all needs every rank, and its own tokens go elsewhere.
        - [ ] It skips the all-to-alls
          > Then all other ranks wait for it.
        - [ ] It takes tokens from a full expert
          > The router decides, not the rank.""")),
    Question(id="expert-scale", ask=Choice.read("""
        Eight ranks, an expert on each. The loss is the mean over each rank's own tokens. What has to be done with an
        expert's gradient?

        - [x] Divide it by 8, and send nothing
          > Backward has brought the gradients of all ranks' tokens. What you want is a mean over ranks.
        - [ ] All-reduce it, and divide by 8
          > This adds up different experts.
        - [ ] Nothing: it is complete
          > It is a sum over eight losses, 8 times too large.""")),
    Question(id="active", ask=Choice.read("""
        You double the number of experts, and each token still goes to one. What doubles?

        - [x] The bytes of the experts' states
          > Every expert has parameters, gradients and optimizer states.
        - [ ] The time for a token
          > It passes as many parameters as before.
        - [ ] The bytes of the all-to-alls
          > A token still travels to one expert and back.""")),
))
