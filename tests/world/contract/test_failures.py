"""One message reports each kind of failure, the same on every backend, and the next run works.

The docstring of a program is the whole message of its run. A line that begins with eight spaces continues the line
before it.
"""

import functools
import inspect
import os
import re
import sys
import time

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

from course_lib import RankError
from course_lib.world.processes import run_loop
from course_lib.world.rank_threads import supervisor
from tests.world.programs import come_to_their_waits, failure, rank

PROGRAMS = []


def fails(kind, rank=None, ranks=3):
    """Enter a program, the kind of its failure, the rank to look at first if it is certain, and how many ranks run."""
    return lambda program: PROGRAMS.append(pytest.param(program, kind, rank, ranks, id=program.__name__)) or program


def message(error: RankError) -> str:
    """The message without the numbers of lines."""
    return re.sub(r"line \d+", "line _", str(error)).replace(":  ", ": ")


def expected(program) -> str:
    return inspect.getdoc(program).replace("\n        ", " ").replace(":  ", ": ")


@fails("raised", rank=2)
def raises() -> None:
    """rank 2 of 3 raised ValueError: two is odd
      rank 2 raised at test_failures.py line _, in raises:  raise ValueError("two is odd")
      ranks 0, 1 waited in all_reduce #1 at test_failures.py line _, in raises:  dist.all_reduce(torch.ones(2))
    Next: find the cause, in that line or before it, and run the cell again. The other ranks were stopped: they would
            have waited for it forever.
    """
    if rank() == 2:
        raise ValueError("two is odd")
    dist.all_reduce(torch.ones(2))


@fails("raised")
def lacks_a_name_of_an_earlier_cell() -> None:
    """all 3 ranks raised NameError: name 'my_ring' is not defined
      ranks 0-2 raised at test_failures.py line _, in lacks_a_name_of_an_earlier_cell:  my_ring()  # noqa: F821
    Next: correct the name, or define it before that line. In a notebook, run the cell that defines it (after a restart
            of the kernel, all cells above). A cell with %%ranks, and a program, see only names of their own.
    """
    my_ring()  # noqa: F821


@fails("raised")
def raises_the_same_on_every_rank() -> None:
    """all 3 ranks raised ValueError: the same
      ranks 0-2 raised at test_failures.py line _, in raises_the_same_on_every_rank:  raise ValueError("the same")
    Next: find the cause, in that line or before it, and run the cell again.
    """
    dist.barrier()
    raise ValueError("the same")


@fails("raised", ranks=2)
def raises_differently_on_one_line() -> None:
    """rank 0 of 2 raised ValueError: zero
      rank 0 raised at test_failures.py line _, in raises_differently_on_one_line:  raise [ValueError("zero"),
            KeyError("one")][rank()]
      rank 1 raised KeyError: 'one' at test_failures.py line _, in raises_differently_on_one_line:  raise
            [ValueError("zero"), KeyError("one")][rank()]
    Next: find the cause, in that line or before it, and run the cell again.
    """
    raise [ValueError("zero"), KeyError("one")][rank()]


@fails("raised", ranks=2)
def raises_with_the_same_first_line() -> None:
    """rank 0 of 2 raised ValueError: no gradient
        on rank 0
      rank 0 raised at test_failures.py line _, in raises_with_the_same_first_line:  raise ValueError(f"no gradient\\non
            rank {rank()}")
      rank 1 raised ValueError at test_failures.py line _, in raises_with_the_same_first_line:  raise ValueError(f"no
            gradient\\non rank {rank()}")
    Next: find the cause, in that line or before it, and run the cell again.
    """
    raise ValueError(f"no gradient\non rank {rank()}")


@fails("raised", rank=1)
def raises_in_a_backward_hook() -> None:
    """rank 1 of 3 raised RuntimeError: in the hook
      rank 1 raised at test_failures.py line _, in hook:  raise RuntimeError("in the hook")
      ranks 0, 2 waited in all_reduce #1 at test_failures.py line _, in hook:  dist.all_reduce(gradient)
    Next: find the cause, in that line or before it, and run the cell again. The other ranks were stopped: they would
            have waited for it forever.
    """
    x = torch.ones(2, requires_grad=True)

    def hook(gradient) -> None:
        if rank() == 1:
            raise RuntimeError("in the hook")
        dist.all_reduce(gradient)

    x.register_hook(hook)
    (x * x).sum().backward()


@fails("raised", rank=0)
def raises_while_ddp_reduces_on_the_others() -> None:
    """rank 0 of 3 raised ValueError: before backward
      rank 0 raised at test_failures.py line _, in raises_while_ddp_reduces_on_the_others:  raise ValueError("before
            backward")
      ranks 1, 2 at test_failures.py line _, in raises_while_ddp_reduces_on_the_others:  loss.backward()
    Next: find the cause, in that line or before it, and run the cell again.
    """
    net = DistributedDataParallel(torch.nn.Linear(4, 4))
    loss = net(torch.ones(2, 4)).sum()
    if rank() == 0:
        raise ValueError("before backward")
    loss.backward()


@fails("raised", rank=1)
def raises_again_in_a_finally() -> None:
    """rank 1 of 3 raised ValueError: second
      rank 1 raised at test_failures.py line _, in raises_again_in_a_finally:  raise ValueError("second")
      ranks 0, 2 waited in barrier #1 at test_failures.py line _, in raises_again_in_a_finally:  dist.barrier()
      rank 1 raised that while handling KeyError: 'lost' at test_failures.py line _, in raises_again_in_a_finally:
            {}["lost"]
    Next: find the cause, in that line or before it, and run the cell again. The other ranks were stopped: they would
            have waited for it forever.
    """
    if rank() == 1:
        try:
            {}["lost"]
        finally:
            raise ValueError("second")
    dist.barrier()


@fails("raised", rank=1)
def raises_from_an_earlier_exception() -> None:
    """rank 1 of 3 raised RuntimeError: a worker failed
      rank 1 raised at test_failures.py line _, in raises_from_an_earlier_exception:  raise RuntimeError("a worker
            failed") from error
      ranks 0, 2 waited in barrier #1 at test_failures.py line _, in raises_from_an_earlier_exception:  dist.barrier()
      rank 1 raised that while handling KeyError: 'lost' at test_failures.py line _, in
            raises_from_an_earlier_exception:  {}["lost"]
    Next: find the cause, in that line or before it, and run the cell again. The other ranks were stopped: they would
            have waited for it forever.
    """
    if rank() == 1:
        try:
            {}["lost"]
        except KeyError as error:
            raise RuntimeError("a worker failed") from error
    dist.barrier()


@fails("raised", rank=1)
def raises_a_long_message() -> None:
    """rank 1 of 3 raised RuntimeError: part 0
        part 1
        part 2
        …
        part 7
        part 8
        the cause
      rank 1 raised at test_failures.py line _, in raises_a_long_message:  raise RuntimeError(text)
      ranks 0, 2 waited in barrier #1 at test_failures.py line _, in raises_a_long_message:  dist.barrier()
    Next: find the cause, in that line or before it, and run the cell again. The other ranks were stopped: they would
            have waited for it forever.
    """
    text = "\n".join([*(f"part {number}" for number in range(9)), "the cause"])
    if rank() == 1:
        raise RuntimeError(text)
    dist.barrier()


@fails("raised", rank=0, ranks=2)
def raises_in_a_callback() -> None:
    """rank 0 of 2 raised RuntimeError: Got the following error when running the callback: ZeroDivisionError: division
            by zero
      rank 0 raised at test_failures.py line _, in lambda:  done.then(lambda _: 1 / rank()).wait()
      rank 1 returned
    Next: find the cause, in that line or before it, and run the cell again.
    """
    done = dist.all_reduce(torch.ones(2), async_op=True).get_future()
    done.then(lambda _: 1 / rank()).wait()


@fails("raised", ranks=2)
def brings_what_does_not_divide() -> None:
    """both ranks raised ValueError: reduce_scatter_single: the input needs a length divisible by the 2 ranks, got 7
            elements. Pad it to 8 first.
      ranks 0, 1 raised at test_failures.py line _, in brings_what_does_not_divide:
            dist.reduce_scatter_single(torch.empty(3), torch.ones(7))
    Next: find the cause, in that line or before it, and run the cell again.
    """
    dist.reduce_scatter_single(torch.empty(3), torch.ones(7))


@fails("raised", ranks=2)
def gathers_into_one_tensor_twice() -> None:
    """both ranks raised ValueError: all_gather: outputs 0 and 1 share memory, so that one rank's part would overwrite
            another's. Make a tensor for each: [torch.empty(...) for _ in range(2)]; a list times a number repeats one
            tensor.
      ranks 0, 1 raised at test_failures.py line _, in gathers_into_one_tensor_twice:
            dist.all_gather([torch.empty(3)] * 2, torch.ones(3))
    Next: find the cause, in that line or before it, and run the cell again.
    """
    dist.all_gather([torch.empty(3)] * 2, torch.ones(3))


@fails("raised", ranks=2)
def makes_a_smaller_default_group() -> None:
    """both ranks raised CourseError: init_process_group was given world_size=1, and it is 2 here. The number of ranks
            is chosen at the start: World(2), course run --ranks 2, mp.spawn(..., nprocs=2). Pass that number, and to
            each rank its own; or leave both out.
      ranks 0, 1 raised at test_failures.py line _, in makes_a_smaller_default_group:  dist.init_process_group("gloo",
            rank=0, world_size=1)
    Next: find the cause, in that line or before it, and run the cell again.
    """
    dist.init_process_group("gloo", rank=0, world_size=1)


@fails("absent", rank=1, ranks=2)
def leaves_a_rank_out_of_the_default_group() -> None:
    """rank 1 returned without the init_process_group #1 that rank 0 waits in
      rank 1 returned
      rank 0 waited in init_process_group #1 at test_failures.py line _, in leaves_a_rank_out_of_the_default_group:
            dist.init_process_group()
    Next: every rank of the group must call init_process_group: look for an `if`, a `return`, an `except` or a loop
            of a different length that keeps rank 1 from it.
    """
    dist.destroy_process_group()
    if os.environ["RANK"] == "0":
        dist.init_process_group()


@fails("exited", rank=1)
def exits() -> None:
    """rank 1 of 3 ended with sys.exit(3)
      rank 1 raised at test_failures.py line _, in exits:  sys.exit(3)
      ranks 0, 2 waited in barrier #1 at test_failures.py line _, in exits:  dist.barrier()
    Next: find out why that line ends the rank. Every code except 0 reports a failure.
    """
    if rank() == 1:
        sys.exit(3)
    dist.barrier()


@fails("exited", rank=1)
def exits_without_a_status() -> None:
    """rank 1 of 3 ended with sys.exit(0)
      rank 1 raised at test_failures.py line _, in exits_without_a_status:  sys.exit()
      ranks 0, 2 waited in barrier #1 at test_failures.py line _, in exits_without_a_status:  dist.barrier()
    Next: use `return` to end a rank's work, on every rank at the same point.
    """
    if rank() == 1:
        sys.exit()
    dist.barrier()


@fails("absent", rank=2)
def returns_early() -> None:
    """rank 2 returned without the all_reduce #2 that ranks 0, 1 wait in
      rank 2 returned
      ranks 0, 1 waited in all_reduce #2 at test_failures.py line _, in returns_early:  dist.all_reduce(torch.ones(2))
    Next: every rank of the group must call all_reduce: look for an `if`, a `return`, an `except` or a loop of a
            different length that keeps rank 2 from it.
    """
    dist.all_reduce(torch.ones(2))
    if rank() == 2:
        return
    dist.all_reduce(torch.ones(2))


@fails("absent", rank=1)
def skips_a_call_before_an_equal_one() -> None:
    """rank 1 returned without the all_reduce #4 that ranks 0, 2 wait in
      rank 1 returned
      ranks 0, 2 waited in all_reduce #4 at test_failures.py line _, in skips_a_call_before_an_equal_one:
            dist.all_reduce(norm)
      the lines first differ at all_reduce #2: ranks 0, 2 test_failures.py line _, in skips_a_call_before_an_equal_one:
            dist.all_reduce(norm); rank 1 test_failures.py line _, in skips_a_call_before_an_equal_one:
            dist.all_reduce(loss)
    Next: let every rank make the same calls, in the same order: look for an `if`, a `continue`, a `return` or an
            `except` that only some ranks meet, or for a loop that is longer on some ranks.
    """
    loss, norm = torch.ones(2), torch.ones(2)
    for step in range(2):
        dist.all_reduce(loss)
        if rank() != 1 or step != 0:
            dist.all_reduce(norm)


@fails("mismatch")
def skips_a_call_in_the_second_round() -> None:
    """the ranks disagree about the number of elements in all_reduce #3: ranks 0, 2: float32 [8]; rank 1: float32 [4]
      ranks 0, 2 called all_reduce #3 at test_failures.py line _, in skips_a_call_in_the_second_round:
            dist.all_reduce(torch.ones(8))
      rank 1 called all_reduce #3 at test_failures.py line _, in skips_a_call_in_the_second_round:
            dist.all_reduce(torch.ones(4))
      calls of all_reduce at test_failures.py line _ until then: ranks 0, 2: 2; rank 1: 1
      calls of all_reduce at test_failures.py line _ until then: ranks 0, 2: 1; rank 1: 2
    Next: the ranks call from different lines. If these calls are not meant for each other, look for one that only some
            ranks make. If they are: find why the sizes differ: a different model, order or batch on a rank, a call that
            a rank skipped earlier (a gradient that is None), or a size that follows the data (torch.bincount needs
            minlength=). If they are meant to differ, pad the shorter tensors.
    """
    for batch in range(2):
        if rank() != 1 or batch == 0:
            dist.all_reduce(torch.ones(8))
        dist.all_reduce(torch.ones(4))


@fails("mismatch")
def skips_the_calls_of_a_step() -> None:
    """the ranks call different collectives at the same point: ranks 0, 2: all_reduce #5; rank 1: barrier #1
      ranks 0, 2 called all_reduce #5 at test_failures.py line _, in skips_the_calls_of_a_step:
            dist.all_reduce(gradient)
      rank 1 called barrier #1 at test_failures.py line _, in skips_the_calls_of_a_step:  dist.barrier()
      calls of all_reduce at test_failures.py line _ until then: ranks 0, 2: 5; rank 1: 4
    Next: let every rank make the same calls, in the same order: look for an `if`, a `continue`, a `return` or an
            `except` that only some ranks meet, or for a loop that is longer on some ranks.
    """
    for step in range(3):
        if rank() == 1 and step == 1:
            continue
        for gradient in (torch.ones(2), torch.ones(3)):
            dist.all_reduce(gradient)
    dist.barrier()


@fails("absent")
def calls_a_helper_once_more() -> None:
    """ranks 0, 2 returned without the all_reduce #2 that rank 1 waits in
      ranks 0, 2 returned
      rank 1 waited in all_reduce #2 at test_failures.py line _, in reduce:  dist.all_reduce(torch.ones(2)), called from
            test_failures.py line _, in calls_a_helper_once_more:  reduce()
      calls of all_reduce at test_failures.py line _ until then: ranks 0, 2: 1; rank 1: 2
    Next: every rank of the group must call all_reduce: look for an `if`, a `return`, an `except` or a loop of a
            different length that keeps ranks 0, 2 from it.
    """

    def reduce() -> None:
        dist.all_reduce(torch.ones(2))

    reduce()
    if rank() == 1:
        reduce()


@fails("mismatch", ranks=2)
def has_a_batch_more_for_a_model_with_buffers() -> None:
    """the ranks call different collectives at the same point: rank 0: all_reduce #3; rank 1: broadcast #10
      rank 0 called all_reduce #3 at test_failures.py line _, in has_a_batch_more_for_a_model_with_buffers:
            dist.all_reduce(torch.ones(1))
      rank 1 called broadcast #10 at test_failures.py line _, in has_a_batch_more_for_a_model_with_buffers:
            model(torch.randn(4, 2)).sum().backward()
      calls of broadcast at test_failures.py line _ until then: rank 0: 6; rank 1: 7
    Next: let every rank make the same calls, in the same order: look for an `if`, a `continue`, a `return` or an
            `except` that only some ranks meet, or for a loop that is longer on some ranks. If the broadcast's line
            calls a model in DistributedDataParallel, its forward broadcasts buffers, such as BatchNorm's: evaluate
            `model.module` if not every rank does.
    """
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3)))
    for _ in range(2 + rank()):
        model(torch.randn(4, 2)).sum().backward()
    dist.all_reduce(torch.ones(1))


@fails("mismatch", ranks=2)
def evaluates_on_one_rank() -> None:
    """the ranks call different collectives at the same point: rank 0: all_reduce #4; rank 1: broadcast #1
      rank 0 called all_reduce #4 at test_failures.py line _, in reduce:  dist.all_reduce(torch.ones(2)), called from
            test_failures.py line _, in evaluates_on_one_rank:  reduce()
      rank 1 called broadcast #1 at test_failures.py line _, in evaluates_on_one_rank:  dist.broadcast(torch.ones(2), 0)
      the lines first differ at all_reduce #3: rank 0 test_failures.py line _, in reduce:
            dist.all_reduce(torch.ones(2)), called from test_failures.py line _, in evaluates_on_one_rank:  reduce();
            rank 1 test_failures.py line _, in reduce:  dist.all_reduce(torch.ones(2)), called from test_failures.py
            line _, in evaluates_on_one_rank:  reduce()
    Next: let every rank make the same calls, in the same order: look for an `if`, a `continue`, a `return` or an
            `except` that only some ranks meet, or for a loop that is longer on some ranks.
    """

    def reduce() -> None:
        dist.all_reduce(torch.ones(2))

    for step in range(3):
        reduce()
        if step == 1 and rank() == 0:
            reduce()
    dist.broadcast(torch.ones(2), 0)


@fails("mismatch", ranks=4)
def takes_the_row_for_the_column() -> None:
    """the ranks disagree about the number of elements in all_reduce #2 in group [2, 3]: rank 2: float32 [2]; rank 3:
            float32 [3]
      rank 2 called all_reduce #2 in group [2, 3] at test_failures.py line _, in takes_the_row_for_the_column:
            dist.all_reduce(torch.ones(2), group=row)
      rank 3 called all_reduce #2 in group [2, 3] at test_failures.py line _, in takes_the_row_for_the_column:
            dist.all_reduce(torch.ones(3), group=row if rank() == 3 else column)
      rank 1 waited in all_reduce #1 in group [1, 3] for rank 3, at test_failures.py line _, in
            takes_the_row_for_the_column:  dist.all_reduce(torch.ones(3), group=row if rank() == 3 else column)
      rank 0 waited in all_reduce #2 in group [0, 1] for rank 1, at test_failures.py line _, in
            takes_the_row_for_the_column:  dist.all_reduce(torch.ones(2), group=row)
      calls of all_reduce at test_failures.py line _ until then: rank 2: 2; rank 3: 1
    Next: the ranks call from different lines. If these calls are not meant for each other, look for one that only some
            ranks make. If they are: find why the sizes differ: a different model, order or batch on a rank, a call that
            a rank skipped earlier (a gradient that is None), or a size that follows the data (torch.bincount needs
            minlength=). If they are meant to differ, pad the shorter tensors.
    """
    rows = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    columns = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    row, column = rows[rank() // 2], columns[rank() % 2]
    for _ in range(2):
        dist.all_reduce(torch.ones(2), group=row)
        if rank() == 3:
            come_to_their_waits()
        dist.all_reduce(torch.ones(3), group=row if rank() == 3 else column)


@fails("deadlock", ranks=4)
def leaves_out_the_reduction_of_a_forward() -> None:
    """deadlock: all 4 ranks wait for each other
      rank 0 waited in all_reduce #2 in group [0, 2] for rank 2, at test_failures.py line _, in
            leaves_out_the_reduction_of_a_forward:  dist.all_reduce(torch.ones(2), group=columns[rank() % 2])
      rank 1 waited in all_reduce #5 in group [0, 1] for rank 0, at test_failures.py line _, in forward:
            dist.all_reduce(torch.ones(2), group=rows[rank() // 2]), called from test_failures.py line _, in
            leaves_out_the_reduction_of_a_forward:  part()
      rank 2 waited in all_reduce #4 in group [2, 3] for rank 3, at test_failures.py line _, in backward:
            dist.all_reduce(torch.ones(2), group=rows[rank() // 2]), called from test_failures.py line _, in
            leaves_out_the_reduction_of_a_forward:  part()
      rank 3 waited in all_reduce #3 in group [1, 3] for rank 1, at test_failures.py line _, in
            leaves_out_the_reduction_of_a_forward:  dist.all_reduce(torch.ones(2), group=columns[rank() % 2])
      the lines first differ at all_reduce #1 in group [2, 3]: rank 2 test_failures.py line _, in forward:
            dist.all_reduce(torch.ones(2), group=rows[rank() // 2]); rank 3 test_failures.py line _, in backward:
            dist.all_reduce(torch.ones(2), group=rows[rank() // 2])
    Next: let every rank make the same calls, in the same order: look for an `if`, a `continue`, a `return` or an
            `except` that only some ranks meet, or for a loop that is longer on some ranks.
    """

    def forward() -> None:
        if rank() != 3:
            dist.all_reduce(torch.ones(2), group=rows[rank() // 2])

    def backward() -> None:
        dist.all_reduce(torch.ones(2), group=rows[rank() // 2])

    rows = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    columns = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    for _ in range(3):
        for part in (forward, backward):
            part()
        dist.all_reduce(torch.ones(2), group=columns[rank() % 2])


@fails("absent", rank=1)
def has_two_batches_less() -> None:
    """rank 1 returned without the all_reduce #3 that ranks 0, 2 wait in
      rank 1 returned
      ranks 0, 2 waited in all_reduce #3 at test_failures.py line _, in has_two_batches_less:
            handles.append(dist.all_reduce(torch.ones(2), async_op=True))
      calls of all_reduce at test_failures.py line _ until then: ranks 0, 2: 3; rank 1: 2
    Next: every rank of the group must call all_reduce: look for an `if`, a `return`, an `except` or a loop of a
            different length that keeps rank 1 from it.
    """
    handles = []
    for _ in range(2 if rank() == 1 else 4):
        handles.append(dist.all_reduce(torch.ones(2), async_op=True))
    for handle in handles:
        handle.wait()


@fails("absent", rank=2)
def broadcasts_from_each_rank_but_the_last() -> None:
    """rank 2 returned without the broadcast #3 that ranks 0, 1 wait in
      rank 2 returned
      ranks 0, 1 waited in broadcast #3 at test_failures.py line _, in broadcasts_from_each_rank_but_the_last:
            dist.broadcast(torch.empty(2), step)
    Next: every rank of the group must call broadcast: look for an `if`, a `return`, an `except` or a loop of a
            different length that keeps rank 2 from it.
    """
    for step in range(3):
        if rank() == step < 2:
            dist.broadcast(torch.ones(2), step)
        elif rank() < 2 or step < 2:
            dist.broadcast(torch.empty(2), step)


@fails("absent", ranks=2, rank=1)
def evaluates_a_model_with_buffers_on_one_rank() -> None:
    """rank 1 returned without the broadcast #10 that rank 0 waits in
      rank 1 returned
      rank 0 waited in broadcast #10 at test_failures.py line _, in evaluates_a_model_with_buffers_on_one_rank:
            model(torch.randn(4, 2))
    Next: every rank of the group must call broadcast: look for an `if`, a `return`, an `except` or a loop of a
            different length that keeps rank 1 from it. If the broadcast's line calls a model in
            DistributedDataParallel, its forward broadcasts buffers, such as BatchNorm's: evaluate `model.module` if not
            every rank does.
    """
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3)))
    for _ in range(2):
        model(torch.randn(4, 2)).sum().backward()
    if rank() == 0:
        model(torch.randn(4, 2))


@fails("mismatch", ranks=2)
def evaluates_a_model_with_buffers_on_one_rank_before_a_barrier() -> None:
    """the ranks call different collectives at the same point: rank 0: broadcast #10; rank 1: barrier #1
      rank 0 called broadcast #10 at test_failures.py line _, in
            evaluates_a_model_with_buffers_on_one_rank_before_a_barrier:  model(torch.randn(4, 2))
      rank 1 called barrier #1 at test_failures.py line _, in
            evaluates_a_model_with_buffers_on_one_rank_before_a_barrier:  dist.barrier()
    Next: let every rank make the same calls, in the same order: look for an `if`, a `continue`, a `return` or an
            `except` that only some ranks meet, or for a loop that is longer on some ranks. If the broadcast's line
            calls a model in DistributedDataParallel, its forward broadcasts buffers, such as BatchNorm's: evaluate
            `model.module` if not every rank does.
    """
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3)))
    for _ in range(2):
        model(torch.randn(4, 2)).sum().backward()
    if rank() == 0:
        model(torch.randn(4, 2))
    dist.barrier()


@fails("mismatch", ranks=2)
def evaluates_a_model_with_buffers_on_one_rank_before_a_broadcast() -> None:
    """the ranks disagree about the number of elements in broadcast #4: rank 0: float32 [6]; rank 1: float32 [2]
      rank 0 called broadcast #4 at test_failures.py line _, in
            evaluates_a_model_with_buffers_on_one_rank_before_a_broadcast:  model(torch.randn(4, 2))
      rank 1 called broadcast #4 at test_failures.py line _, in
            evaluates_a_model_with_buffers_on_one_rank_before_a_broadcast:  dist.broadcast(torch.ones(2), 0)
    Next: the ranks call from different lines. If these calls are not meant for each other, look for one that only some
            ranks make. If they are: find why the sizes differ: a different model, order or batch on a rank, a call that
            a rank skipped earlier (a gradient that is None), or a size that follows the data (torch.bincount needs
            minlength=). If they are meant to differ, pad the shorter tensors. If the broadcast's line calls a model in
            DistributedDataParallel, its forward broadcasts buffers, such as BatchNorm's: evaluate `model.module` if not
            every rank does.
    """
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3)))
    if rank() == 0:
        model(torch.randn(4, 2))
    dist.broadcast(torch.ones(2), 0)


@fails("absent", rank=2)
def never_joins_an_asynchronous_call() -> None:
    """rank 2 returned without the all_reduce #1 that ranks 0, 1 wait in
      rank 2 returned
      ranks 0, 1 waited in all_reduce #1 at test_failures.py line _, in never_joins_an_asynchronous_call:
            dist.all_reduce(torch.ones(1), async_op=True).wait()
    Next: every rank of the group must call all_reduce: look for an `if`, a `return`, an `except` or a loop of a
            different length that keeps rank 2 from it.
    """
    if rank() < 2:
        dist.all_reduce(torch.ones(1), async_op=True).wait()


@fails("absent", rank=2)
def does_not_make_its_group() -> None:
    """rank 2 returned without the new_group([0, 1, 2]) that ranks 0, 1 wait in
      rank 2 returned
      ranks 0, 1 waited in new_group([0, 1, 2]) at test_failures.py line _, in does_not_make_its_group:
            dist.new_group([0, 1, 2])
    Next: every rank of the group must call new_group: look for an `if`, a `return`, an `except` or a loop of a
            different length that keeps rank 2 from it.
    """
    if rank() != 2:
        dist.new_group([0, 1, 2])


@fails("absent", rank=1, ranks=2)
def gathers_a_whole_tensor_on_one_rank():
    """rank 1 returned without the all_gather_single_coalesced #1 that rank 0 waits in
      rank 1 returned
      rank 0 waited in all_gather_single_coalesced #1 at test_failures.py line _, in gathers_a_whole_tensor_on_one_rank:
            return weight.full_tensor()
    Next: every rank of the group must call full_tensor: look for an `if`, a `return`, an `except` or a loop of a
            different length that keeps rank 1 from it. full_tensor calls collectives.
    """
    weight = distribute_tensor(torch.arange(8.0), init_device_mesh("cpu", (2,)), [Shard(0)])
    if rank() == 0:
        return weight.full_tensor()


@fails("absent", rank=1, ranks=2)
def calls_in_compiled_code_on_one_rank():
    """rank 1 returned without the all_reduce #1 that rank 0 waits in
      rank 1 returned
      rank 0 waited in all_reduce #1 at test_failures.py line _, in total:  @torch.compile(backend="eager")
    Next: every rank of the group must call all_reduce: look for an `if`, a `return`, an `except` or a loop of a
            different length that keeps rank 1 from it.
    """

    @torch.compile(backend="eager")
    def total(x, alone: bool):
        return x if alone else funcol.all_reduce(x, "sum", dist.group.WORLD) + 1

    return total(torch.ones(4), rank() == 1)


@fails("absent", rank=1, ranks=2)
def never_receives() -> None:
    """rank 1 returned without the recv that matches the send to rank 1 of rank 0
      rank 1 returned
      rank 0 waited in send to rank 1 at test_failures.py line _, in never_receives:  dist.send(torch.ones(1), 1)
    Next: give every send its recv: rank 1 has to call recv with the other rank, or the send has to go, or to name a
            different rank or tag.
    """
    if rank() == 0:
        dist.send(torch.ones(1), 1)


@fails("mismatch")
def calls_something_different() -> None:
    """the ranks call different collectives at the same point: ranks 0, 1: all_reduce #1; rank 2: broadcast #1
      ranks 0, 1 called all_reduce #1 at test_failures.py line _, in calls_something_different:  dist.all_reduce(x)
      rank 2 called broadcast #1 at test_failures.py line _, in calls_something_different:  dist.broadcast(x, 0)
    Next: let every rank make the same calls, in the same order: look for an `if`, a `continue`, a `return` or an
            `except` that only some ranks meet, or for a loop that is longer on some ranks.
    """
    x = torch.ones(2)
    if rank() == 2:
        dist.broadcast(x, 0)
    else:
        dist.all_reduce(x)


@fails("mismatch", ranks=2)
def clips_on_one_rank() -> None:
    """the ranks call different collectives at the same point: rank 0: all_reduce #1; rank 1: barrier #1
      rank 0 called all_reduce #1 at test_failures.py line _, in clips_on_one_rank:  clip_grad_norm_(net.parameters(),
            1.0)
      rank 1 called barrier #1 at test_failures.py line _, in clips_on_one_rank:  dist.barrier()
    Next: let every rank make the same calls, in the same order: look for an `if`, a `continue`, a `return` or an
            `except` that only some ranks meet, or for a loop that is longer on some ranks. clip_grad_norm_ calls
            collectives.
    """
    net = fully_shard(torch.nn.Linear(4, 4))
    net(torch.ones(2, 4)).sum().backward()
    if rank() == 0:
        clip_grad_norm_(net.parameters(), 1.0)
    dist.barrier()


@fails("mismatch")
def brings_one_element_more() -> None:
    """the ranks disagree about the number of elements in all_reduce #1: ranks 0, 1: float32 [4]; rank 2: float32 [5]
      ranks 0-2 called all_reduce #1 at test_failures.py line _, in brings_one_element_more:
            dist.all_reduce(torch.ones(4 + rank() // 2))
    Next: find why the sizes differ: a different model, order or batch on a rank, a call that a rank skipped
            earlier (a gradient that is None), or a size that follows the data (torch.bincount needs minlength=). If
            they are meant to differ, pad the shorter tensors.
    """
    dist.all_reduce(torch.ones(4 + rank() // 2))


@fails("mismatch")
def brings_one_element_more_in_the_background() -> None:
    """the ranks disagree about the number of elements in all_reduce #1: ranks 0, 1: float32 [4]; rank 2: float32 [5]
      ranks 0-2 called all_reduce #1 at test_failures.py line _, in brings_one_element_more_in_the_background:
            dist.all_reduce(torch.ones(4 + rank() // 2), async_op=True).wait()
    Next: find why the sizes differ: a different model, order or batch on a rank, a call that a rank skipped
            earlier (a gradient that is None), or a size that follows the data (torch.bincount needs minlength=). If
            they are meant to differ, pad the shorter tensors.
    """
    dist.all_reduce(torch.ones(4 + rank() // 2), async_op=True).wait()


@fails("mismatch")
def waits_in_native_code_for_calls_that_do_not_fit() -> None:
    """the ranks disagree about the number of elements in all_reduce #1: ranks 0, 1: float32 [4]; rank 2: float32 [5]
      ranks 0-2 called all_reduce #1 at test_failures.py line _, in waits_in_native_code_for_calls_that_do_not_fit:
            dist.all_reduce(torch.ones(4 + rank() // 2), async_op=True).get_future().wait()
    Next: find why the sizes differ: a different model, order or batch on a rank, a call that a rank skipped
            earlier (a gradient that is None), or a size that follows the data (torch.bincount needs minlength=). If
            they are meant to differ, pad the shorter tensors.
    """
    dist.all_reduce(torch.ones(4 + rank() // 2), async_op=True).get_future().wait()


@fails("mismatch", ranks=2)
def expects_a_longer_message() -> None:
    """the ranks disagree about the number of elements of the message: rank 0: send float32 [2]; rank 1: recv float32
            [3]
      rank 0 called send to rank 1 at test_failures.py line _, in expects_a_longer_message:  dist.send(torch.ones(2), 1)
      rank 1 called recv from rank 0 at test_failures.py line _, in expects_a_longer_message:  dist.recv(torch.empty(3),
            0)
    Next: compare the size that the receiver allocates, perhaps from an earlier message (a header), with what is
            sent. If these two are not meant for each other, compare the order and the tags of the messages.
    """
    if rank() == 0:
        dist.send(torch.ones(2), 1)
    else:
        dist.recv(torch.empty(3), 0)


@fails("mismatch")
def differs_after_an_exception() -> None:
    """the ranks call different collectives at the same point: ranks 0, 2: all_reduce #1; rank 1: barrier #1
      ranks 0, 2 called all_reduce #1 at test_failures.py line _, in differs_after_an_exception:
            dist.all_reduce(torch.ones(2) / (rank() - 1 or int("one")))
      rank 1 called barrier #1 at test_failures.py line _, in differs_after_an_exception:  dist.barrier()
      That call of rank 1 was made in an `except`, a `finally` or a `with`, after ValueError: invalid literal for int()
            with base 10: 'one' at test_failures.py line _, in differs_after_an_exception:
            dist.all_reduce(torch.ones(2) / (rank() - 1 or int("one")))
    Next: look at that exception first: a rank that raises takes another way than its peers. If that is meant: let every
            rank make the same calls, in the same order: look for an `if`, a `continue`, a `return` or an `except` that
            only some ranks meet, or for a loop that is longer on some ranks.
    """
    try:
        dist.all_reduce(torch.ones(2) / (rank() - 1 or int("one")))
    finally:
        dist.barrier()


@fails("mismatch")
def brings_a_different_dtype() -> None:
    """the ranks disagree about the dtype in all_reduce #1: ranks 0, 2: float32 [2]; rank 1: int32 [2]
      ranks 0-2 called all_reduce #1 at test_failures.py line _, in brings_a_different_dtype:
            dist.all_reduce(torch.ones(2, dtype=torch.int32 if rank() == 1 else torch.float32))
    Next: look for a call that a rank skipped earlier (a gradient that is None). If there is none, convert the
            tensors to one dtype before the call, on every rank.
    """
    dist.all_reduce(torch.ones(2, dtype=torch.int32 if rank() == 1 else torch.float32))


@fails("mismatch", ranks=2)
def calls_inside_a_join() -> None:
    """the ranks disagree about the number of elements in all_reduce #8: rank 0: float32 [1]; rank 1: float32 [7]
      rank 0 called all_reduce #8 at test_failures.py line _, in calls_inside_a_join:  with model.join():
      rank 1 called all_reduce #8 at test_failures.py line _, in calls_inside_a_join:  dist.all_reduce(torch.ones(7))
      rank 0 had reached the end of the `with` at test_failures.py line _ when rank 1 called all_reduce #8 at
            test_failures.py line _, in calls_inside_a_join:  dist.all_reduce(torch.ones(7))
    Next: call no collective of your own inside this `with`. A rank that has used up its batches repeats only the calls
            of the models and optimizers that join. Call yours after the block, on every rank.
    """
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    with model.join():
        for _ in range(1 + rank()):
            model(torch.ones(1)).backward()
            dist.all_reduce(torch.ones(7))


@fails("mismatch", ranks=2)
def calls_like_a_join() -> None:
    """the ranks disagree about the reduction in all_reduce #18: rank 0: max; rank 1: sum
      ranks 0, 1 called all_reduce #18 at test_failures.py line _, in calls_like_a_join:  with model.join():
      rank 1 had reached the end of the `with` at test_failures.py line _ when rank 0 called all_reduce #16 at
            test_failures.py line _, in calls_like_a_join:  dist.all_reduce(torch.ones(()))
    Next: call no collective of your own inside this `with`. A rank that has used up its batches repeats only the calls
            of the models and optimizers that join. Call yours after the block, on every rank.
    """
    model = DistributedDataParallel(torch.nn.Linear(8, 8))
    with model.join():
        for _ in range(4 - rank()):
            model(torch.ones(2, 8)).sum().backward()
            dist.all_reduce(torch.ones(()))


@fails("mismatch", ranks=2)
def takes_turns_and_then_differs_in_dtype() -> None:
    """the ranks disagree about the dtype in all_reduce #3: rank 0: float32 [2]; rank 1: bfloat16 [2]
      ranks 0, 1 called all_reduce #3 at test_failures.py line _, in takes_turns_and_then_differs_in_dtype:
            dist.all_reduce(torch.ones(2, dtype=(torch.float32, torch.bfloat16)[rank()]))
      the lines first differ at all_reduce #1: rank 0 test_failures.py line _, in takes_turns_and_then_differs_in_dtype:
            dist.all_reduce(torch.ones(2)); rank 1 test_failures.py line _, in takes_turns_and_then_differs_in_dtype:
            dist.all_reduce(torch.zeros(2))
    Next: let every rank make the same calls, in the same order: look for an `if`, a `continue`, a `return` or an
            `except` that only some ranks meet, or for a loop that is longer on some ranks. If the lines may differ:
            look for a call that a rank skipped earlier (a gradient that is None). If there is none, convert the
            tensors to one dtype before the call, on every rank.
    """
    for step in range(2):
        if step == rank():
            dist.all_reduce(torch.ones(2))
        else:
            dist.all_reduce(torch.zeros(2))
    dist.all_reduce(torch.ones(2, dtype=(torch.float32, torch.bfloat16)[rank()]))


@fails("mismatch")
def names_a_different_root() -> None:
    """the ranks disagree about the root in broadcast #1: ranks 0, 1: root 0; rank 2: root 1
      ranks 0-2 called broadcast #1 at test_failures.py line _, in names_a_different_root:
            dist.broadcast_object_list([None], src=rank() // 2)
    Next: src and dst must be the same number on every rank: that of the rank that sends, or collects. If they are,
            a rank skipped an earlier call (an `if`, a `continue`), so that the ranks are at different calls.
    """
    dist.broadcast_object_list([None], src=rank() // 2)


@fails("not_in_group", rank=2)
def uses_a_group_of_others() -> None:
    """rank 2 of 3 called all_reduce on a group that it does not belong to
      rank 2 called all_reduce on a group of others at test_failures.py line _, in uses_a_group_of_others:
            dist.all_reduce(torch.ones(2), group=group)
      ranks 0, 1 returned
    Next: call all_reduce only on the members: `if dist.get_rank() in ranks:`, or pass the group that rank 2 belongs to.
            (torch alone only warns, and skips the call.)
    """
    group = dist.new_group([0, 1])
    if rank() == 2:
        dist.all_reduce(torch.ones(2), group=group)


@fails("deadlock")
def sends_first() -> None:
    """deadlock: all 3 ranks wait for each other
      rank 0 waited in send to rank 1 at test_failures.py line _, in sends_first:  dist.send(torch.ones(2), (rank() + 1)
            % n)
      rank 1 waited in send to rank 2 at test_failures.py line _, in sends_first:  dist.send(torch.ones(2), (rank() + 1)
            % n)
      rank 2 waited in send to rank 0 at test_failures.py line _, in sends_first:  dist.send(torch.ones(2), (rank() + 1)
            % n)
    Next: let some ranks send and others receive first (for example the even ones), or call isend and irecv, and wait
            for all of them afterwards. If that does not help, compare the peers, the tags and the number of messages
            (in a pipeline, of micro-batches): each send needs one recv.
    """
    n = dist.get_world_size()
    dist.send(torch.ones(2), (rank() + 1) % n)
    dist.recv(torch.empty(2), (rank() - 1) % n)


@fails("deadlock")
def waits_while_another_computes() -> None:
    """deadlock: ranks 0, 1 wait for each other
      rank 0 waited in recv from rank 1 at test_failures.py line _, in waits_while_another_computes:
            dist.recv(torch.empty(1), 1 - rank())
      rank 1 waited in recv from rank 0 at test_failures.py line _, in waits_while_another_computes:
            dist.recv(torch.empty(1), 1 - rank())
      rank 2 at test_failures.py line _, in waits_while_another_computes:  time.sleep(0.01)
    Next: let some ranks send and others receive first (for example the even ones), or call isend and irecv, and wait
            for all of them afterwards. If that does not help, compare the peers, the tags and the number of messages
            (in a pipeline, of micro-batches): each send needs one recv.
    """
    if rank() < 2:
        dist.recv(torch.empty(1), 1 - rank())
    while True:
        time.sleep(0.01)


@fails("absent", rank=2)
def waits_along_a_chain_of_groups() -> None:
    """rank 2 returned without the barrier #1 in group [1, 2] that rank 1 waits in
      rank 2 returned
      rank 1 waited in barrier #1 in group [1, 2] at test_failures.py line _, in waits_along_a_chain_of_groups:
            dist.barrier(last)
      rank 0 waited in barrier #1 in group [0, 1] for rank 1, at test_failures.py line _, in
            waits_along_a_chain_of_groups:  dist.barrier(first)
    Next: every rank of the group must call barrier: look for an `if`, a `return`, an `except` or a loop of a
            different length that keeps rank 2 from it.
    """
    first, last = dist.new_group([0, 1]), dist.new_group([1, 2])
    if rank() == 1:
        dist.barrier(last)
    if rank() == 0:
        dist.barrier(first)


@fails("deadlock")
def calls_in_a_part_of_the_ranks_on_one_of_them() -> None:
    """deadlock: all 3 ranks wait for each other
      rank 0 waited in all_reduce #1 in group [0, 1] for rank 1, at test_failures.py line _, in
            calls_in_a_part_of_the_ranks_on_one_of_them:  dist.all_reduce(torch.ones(1), group=pair)
      ranks 1, 2 waited in barrier #1 at test_failures.py line _, in calls_in_a_part_of_the_ranks_on_one_of_them:
            dist.barrier()
    Next: find an order of calls in which each rank's next partner is ready for it, and look for a call that some ranks
            left out.
    """
    pair = dist.new_group([0, 1])
    if rank() == 0:
        dist.all_reduce(torch.ones(1), group=pair)
    if rank() == 1:
        come_to_their_waits()  # ranks 0 and 1 alone are a deadlock: let rank 2 be there first
    dist.barrier()


@fails("deadlock", ranks=2)
def makes_a_group_while_ddp_waits_in_backward() -> None:
    """deadlock: both ranks wait for each other
      rank 0 waited in all_reduce #3 at test_failures.py line _, in makes_a_group_while_ddp_waits_in_backward:
            model(torch.ones(1, 1)).backward()
      rank 1 waited in new_group([0, 1]) at test_failures.py line _, in makes_a_group_while_ddp_waits_in_backward:
            dist.new_group([0, 1])
      calls of all_reduce at test_failures.py line _ until then: rank 0: 3; rank 1: 2
    Next: let every rank make the same calls, in the same order: look for an `if`, a `continue`, a `return` or an
            `except` that only some ranks meet, or for a loop that is longer on some ranks. new_group is such a call,
            also on the ranks outside the group.
    """
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    for _ in range(3 - rank()):
        model(torch.ones(1, 1)).backward()
    dist.new_group([0, 1])


@fails("deadlock", ranks=2)
def makes_a_group_while_ddp_waits_in_its_constructor() -> None:
    """deadlock: both ranks wait for each other
      rank 0 waited in all_gather #1 at test_failures.py line _, in makes_a_group_while_ddp_waits_in_its_constructor:
            DistributedDataParallel(torch.nn.Linear(1, 1))
      rank 1 waited in new_group([0, 1]) at test_failures.py line _, in
            makes_a_group_while_ddp_waits_in_its_constructor:  dist.new_group([0, 1])
    Next: let every rank make the same calls, in the same order: look for an `if`, a `continue`, a `return` or an
            `except` that only some ranks meet, or for a loop that is longer on some ranks. new_group is such a call,
            also on the ranks outside the group.
    """
    if rank() == 0:
        DistributedDataParallel(torch.nn.Linear(1, 1))
    dist.new_group([0, 1])


@fails("mismatch")
def does_not_make_a_group_of_others() -> None:
    """the ranks disagree about the members in new_group([0, 1]): ranks 0, 1: [0, 1]; rank 2: [0, 2]
      ranks 0, 1 called new_group([0, 1]) at test_failures.py line _, in does_not_make_a_group_of_others:
            dist.new_group([0, 1])
      rank 2 called new_group([0, 2]) at test_failures.py line _, in does_not_make_a_group_of_others:
            dist.new_group([0, 2])
    Next: the ranks call from different lines. If these calls are not meant for each other, look for one that only
            some ranks make. If they are: call new_group on every rank, also on those outside the group, for the same
            lists of ranks and in the same order.
    """
    if rank() != 2:
        dist.new_group([0, 1])
    dist.barrier()
    dist.new_group([0, 2])


@fails("deadlock", ranks=2)
def uses_twin_groups_in_a_different_order() -> None:
    """deadlock: both ranks wait for each other
      ranks 0, 1 waited in barrier #1 in group [0, 1] at test_failures.py line _, in
            uses_twin_groups_in_a_different_order:  dist.barrier(twins[rank()])
    Next: there are two groups with the same members: call on them in the same order on every rank.
    """
    twins = [dist.new_group([0, 1]), dist.new_group([0, 1])]
    dist.barrier(twins[rank()])


@fails("deadlock", ranks=2)
def gives_a_different_tag() -> None:
    """deadlock: both ranks wait for each other
      rank 0 waited in send to rank 1 with tag 7 at test_failures.py line _, in gives_a_different_tag:
            dist.send(torch.ones(1), 1, tag=7)
      rank 1 waited in recv from rank 0 at test_failures.py line _, in gives_a_different_tag:  dist.recv(torch.ones(1),
            0)
    Next: compare the peers, the tags and the number of messages (in a pipeline, of micro-batches): each send needs
            one recv. If they fit, let some ranks send and others receive first (for example the even ones), or call
            isend and irecv, and wait for all of them afterwards.
    """
    if rank() == 0:
        dist.send(torch.ones(1), 1, tag=7)
    else:
        dist.recv(torch.ones(1), 0)


@pytest.fixture(autouse=True)
def long_settle(monkeypatch) -> None:
    """Give ranks the time of a busy machine to reach their waits after a fault. A message says which of them did."""
    for module in (run_loop, supervisor):
        monkeypatch.setattr(module, "SETTLE", 1.5)


def together(program):
    """The program after a collective of all ranks: on a busy machine, one of them can still be starting."""

    @functools.wraps(program)
    def started():
        everyone = torch.zeros(dist.get_world_size())
        dist.all_to_all_single(torch.empty_like(everyone), everyone)
        return program()

    return started


def check(world, program, kind, first, ranks) -> None:
    error = failure(world(ranks, timeout=30), together(program))
    assert (error.kind, message(error)) == (kind, expected(program))
    assert first in (None, error.rank)


@pytest.fixture
def looks_often(monkeypatch) -> None:
    """Find waits in C++ sooner, which ranks cannot report."""
    for module in (run_loop, supervisor):
        monkeypatch.setattr(module, "LOOK", 0.1)
        monkeypatch.setattr(module, "HELD", 0.4)


@pytest.mark.parametrize(("program", "kind", "first", "ranks"), PROGRAMS)
def test_the_whole_message(local_world, looks_often, program, kind, first, ranks) -> None:
    check(local_world, program, kind, first, ranks)


OF_EACH_KIND = {program.values[1]: program for program in PROGRAMS}


@pytest.mark.parametrize(("program", "kind", "first", "ranks"), OF_EACH_KIND.values())
def test_the_whole_message_of_each_kind_on_several_machines(far_world, program, kind, first, ranks) -> None:
    check(far_world, program, kind, first, ranks)


def computes_at_the_end_of_backward() -> None:
    work = []

    def end() -> None:
        time.sleep(1.0)  # a checkpoint, while the other rank waits

    def average(grad: torch.Tensor) -> None:
        work.append(dist.all_reduce(grad.clone(), async_op=True))
        torch.autograd.Variable._execution_engine.queue_callback(end)

    if rank() == 0:
        weight = torch.ones(2, requires_grad=True)
        weight.register_hook(average)
        weight.sum().backward()
    dist.new_group([0, 1])
    if rank() == 1:
        work.append(dist.all_reduce(torch.ones(2), async_op=True))
    work[0].wait()


def test_a_rank_that_computes_at_the_end_of_backward_waits_for_nobody(local_world, looks_often) -> None:
    """Its call is open, and its peer waits for a different call: only that no callback runs makes a deadlock of it."""
    local_world(2, timeout=30).run(computes_at_the_end_of_backward)
