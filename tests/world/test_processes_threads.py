"""A thread that a rank starts is a part of the rank, if ranks are processes."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist

from course_lib import World
from tests.world.programs import failure, rank, total


def processes(world_size: int) -> World:
    return World(world_size, backend="processes", timeout=30)


def on_a_thread(act) -> None:
    thread = threading.Thread(target=act)
    thread.start()
    thread.join()


def test_the_calls_of_threads_are_counted() -> None:
    def program():
        x = torch.ones(4)
        on_a_thread(lambda: dist.all_reduce(x))
        with ThreadPoolExecutor(1) as pool:
            pool.submit(dist.all_reduce, x).result()
        return x.tolist()

    run = processes(2).run(program)
    assert list(run) == [[4.0] * 4] * 2
    assert run.comm[0].count("all_reduce") == 2 and run.comm[0].sent_bytes == 2 * 16


def test_the_calls_of_threads_are_compared() -> None:
    def program() -> None:
        on_a_thread(lambda: dist.all_reduce(torch.ones(3 + rank())))

    error = failure(processes(2), program)
    assert error.kind == "mismatch"
    assert "in lambda:  on_a_thread(lambda: dist.all_reduce(torch.ones(3 + rank())))" in str(error)


def test_a_call_on_the_thread_of_one_rank_is_named() -> None:
    def program() -> None:
        on_a_thread(lambda: rank() or total())

    error = failure(processes(2), program)
    assert error.kind == "absent"
    assert "rank 1 returned without the all_reduce #1 that rank 0 waits in" in str(error)
    assert "Exception in thread" not in "".join(error.output)


def test_an_exception_that_ended_a_thread_is_named() -> None:
    def program() -> None:
        on_a_thread(lambda: [0][rank()])
        if rank() == 0:
            total()

    error = failure(processes(2), program)
    assert "a thread of rank 1 raised IndexError: list index out of range at" in str(error)
    assert "Next: look at the exception in a thread first" in str(error)


def test_ranks_that_wait_for_a_message_of_a_peers_thread_are_no_deadlock() -> None:
    def program():
        received, both_wait = torch.zeros(1), threading.Event()
        sender = threading.Thread(target=lambda: (both_wait.wait(0.5), dist.send(torch.tensor([3.0]), 1 - rank())))
        sender.start()
        dist.recv(received, 1 - rank())
        sender.join()
        return received.item()

    assert list(processes(2).run(program)) == [3.0, 3.0]


def test_a_deadlock_after_an_asynchronous_call_is_reported_at_once() -> None:
    def program() -> None:
        dist.all_reduce(torch.ones(1), async_op=True).wait()
        dist.recv(torch.ones(1), 1 - rank())

    assert failure(processes(2), program).kind == "deadlock"


def test_the_threads_that_deliver_results_end_with_the_next_run() -> None:
    def program() -> None:
        dist.all_reduce(torch.ones(1), async_op=True).wait()
        while sum(thread.name.startswith("delivery") for thread in threading.enumerate()) > 1:
            time.sleep(0.01)  # until the time limit, if those of the last run stay

    world = processes(2)
    world.run(program)
    world.run(program)


def test_a_call_of_a_thread_that_outlives_the_function_is_refused() -> None:
    def program() -> None:
        returned, told = threading.Event(), []

        def act() -> None:
            returned.wait()
            try:
                total()
            except RuntimeError as error:
                told.append(str(error))

        thread = threading.Thread(target=act, daemon=True)
        thread.start()
        __import__("math").left_by_a_thread = returned, thread, told

    def next_program():
        returned, thread, told = __import__("math").left_by_a_thread
        returned.set()
        thread.join()
        return told

    world = processes(2)
    world.run(program)
    [told], _ = world.run(next_program)
    assert told == (
        "rank 0: a thread called all_reduce after the function had returned. Join the thread before the return."
    )
