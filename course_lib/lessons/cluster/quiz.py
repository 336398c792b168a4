"""The quiz of the lesson from notebook to cluster."""

import random

from ...quizzes import Choice, Numeric, Question, Quiz


def global_batch(rng: random.Random) -> Numeric:
    micro, steps, ranks = rng.choice([(4, 8, 16), (2, 4, 64), (1, 16, 32)])
    return Numeric(
        prompt=f"{ranks} ranks take batches of {micro} sequences, and accumulate {steps} batches before each step. How "
        "many sequences does one update see?",
        expected=micro * steps * ranks,
        tolerance=0,
        right="The update sees batch times accumulated batches times ranks.",
        wrong="Each rank sees its own sequences. Multiply the three.",
        mistakes=(
            (micro * ranks, "That leaves out the accumulated batches."),
            (micro * steps, "That is one rank. All ranks' gradients are averaged."),
        ),
    )


QUIZ = Quiz(name="cluster", title="From notebook to cluster", questions=(
    Question(id="local-rank", ask=Choice.read("""
        What is LOCAL_RANK for?

        - [x] To choose this process's GPU on its machine
          > RANK counts over all machines, LOCAL_RANK on one.
        - [ ] To choose this process's share of the data
          > That is RANK.
        - [ ] To find the address of rank 0
          > That is MASTER_ADDR.""")),
    Question(id="set-epoch", ask=Choice.read("""
        A program never calls `sampler.set_epoch`. What happens?

        - [x] Every epoch has the same order
          > The sampler shuffles by seed and epoch number, which stays 0.
        - [ ] The examples are not shuffled
          > The sampler shuffles them, in the same way in each epoch.
        - [ ] Ranks see each other's examples
          > All ranks use the same order, and each takes every N-th of it.""")),
    Question(id="restart", ask=Choice.read("""
        A run is stopped in the middle of its first epoch. It loads model and optimizer, and makes its sampler as at the
        start. Which examples does it see first?

        - [x] The examples with which the epoch began
          > The sampler begins again, with the same order. If the run makes only the steps that were left, no rank sees
            the last examples.
        - [ ] The examples that were left
          > For that, the program has to skip the batches before the stop. The sampler does not know of them.
        - [ ] Examples in a new random order
          > The order depends only on the seed and on the epoch's number.""")),
    Question(id="global-batch", ask=global_batch),
    Question(id="after-sharding", ask=Choice.read("""
        Why is the optimizer made after `fully_shard`?

        - [x] Because `fully_shard` replaces the parameters
          > An optimizer that is made earlier has the old tensors. They get no gradients, so its step changes nothing.
        - [ ] Because the optimizer would be too large
          > The optimizer makes its state in the first step, wherever you make the optimizer.
        - [ ] Because `fully_shard` changes the learning rate
          > `fully_shard` does not know the optimizer.""")),
    Question(id="who-saves", ask=Choice.read("""
        Which ranks call `dcp.save`?

        - [x] All of them
          > Each rank writes its shards, and `dcp.save` is a collective.
        - [ ] Rank 0
          > It has only its own shards, and it would wait for the others.
        - [ ] One per machine
          > Each rank has shards that no other rank has.""")),
    Question(id="async-save", ask=Choice.read("""
        `dcp.async_save` has returned. What may the program do before its result is there?

        - [x] Update the parameters
          > By default, the function returns when it has copied them, so the checkpoint has the values of the call.
        - [x] Go on with forward and backward
          > The copy is written in the background.
        - [ ] Count on this checkpoint after a crash
          > It is complete when `result()` has returned. Until then, the previous one is the last.
        - [ ] Call `dcp.async_save` again, as often as it likes
          > Each save keeps a copy in memory until it is written.""", several=True)),
    Question(id="empty-batch", ask=Choice.read("""
        A batch of one rank has nothing to learn from, and its loss would be NaN. What does that rank do?

        - [x] It makes the step with a loss of 0
          > All ranks make the same calls, and this rank brings gradients of 0. The mean over all labels also needs
            their number on all ranks: lesson 03.
        - [ ] It skips the batch
          > The other ranks then average their gradients with those of this rank's next step, and wait at the end.
        - [ ] It skips the batch, and all ranks meet in a barrier after the loop
          > This rank would wait in the barrier while the others wait for its gradients.""")),
    Question(id="pretended", ask=Choice.read("""
        A program runs on pretended GPUs. Which of its numbers are those of a real GPU?

        - [x] The bytes of its tensors on the GPU
          > They are rounded as CUDA's allocator does. What libraries work in is not counted: see docs/gpu.md.
        - [ ] The seconds of a step
          > The CPU computes. Measure seconds on the GPUs that you will use.
        - [ ] The bytes and the seconds
          > The CPU computes, so the seconds are the CPU's.""")),
    Question(id="reserved", ask=Choice.read("""
        `torch.cuda.memory_reserved()` is 31 GiB, `memory_allocated()` at most 23 GiB. What are the other 8?

        - [x] Memory that the allocator keeps, in blocks that did not fit what was asked for
          > These are fragments and cached blocks. `expandable_segments:True` often makes them fewer.
        - [ ] Gathered parameters
          > They are allocated while they exist.
        - [ ] Other processes on the GPU
          > Reserved counts this process only.""")),
    Question(id="gpus-differ", ask=Choice.read("""
        The loss falls on 8 GPUs. What shows that the program trains as one process would?

        - [x] Equal gradients of a small model, here and in one process
          > The loss also falls with four of this lesson's six faults. With the other two, no parameter moves.
        - [ ] A lower loss than on one GPU
          > It may be lower for many reasons.
        - [ ] No error and no warning
          > None of the six faults raises one.""")),
))
