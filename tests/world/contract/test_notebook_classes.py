"""What a notebook's cells define can be pickled on a rank, as in a process that runs the notebook's code."""

import sys

import pytest

CELLS = """
import enum, functools, io, pickle
import torch, torch.distributed as dist

class Config:
    class Inner:
        value = 1

    def __init__(self, value):
        self.value = value

    @staticmethod
    def double(value):
        return 2 * value

class Mode(enum.Enum):
    TRAIN = 1

def decorate(fn):
    @functools.wraps(fn)
    def call(*args):
        return fn(*args)
    return call

@decorate
def double(value):
    return 2 * value

def gathered():
    objects = [None, None]
    dist.all_gather_object(objects, Config(dist.get_rank()))
    return [one.value for one in objects]

def broadcast():
    objects = [Config(dist.get_rank())]
    dist.broadcast_object_list(objects, src=1)
    return objects[0].value

def dumped():
    config, inner, mode = pickle.loads(pickle.dumps((Config(3), Config.Inner(), Mode.TRAIN)))
    return config.value, inner.value, mode is Mode.TRAIN, Config.double(2)

def saved():
    buffer = io.BytesIO()
    torch.save({"config": Config(4), "x": torch.ones(1)}, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)["config"].value

def of_an_argument(config):
    return pickle.loads(pickle.dumps(config)).value
"""


@pytest.mark.parametrize(
    ("program", "right"),
    [
        ("gathered", [[0, 1], [0, 1]]),
        ("broadcast", [1, 1]),
        ("dumped", [(3, 1, True, 4)] * 2),
        ("saved", [4, 4]),
    ],
)
def test_an_object_of_a_notebooks_class_can_be_pickled(local_world, cells, program, right) -> None:
    assert list(local_world(2).run(cells[program])) == right


def test_the_class_of_an_argument_can_be_pickled_although_the_function_does_not_name_it(local_world, cells) -> None:
    assert list(local_world(2).run(cells["of_an_argument"], cells["Config"](5))) == [5, 5]


def test_a_notebooks_function_can_be_pickled(process_world, cells) -> None:
    def program(double=cells["double"]):
        import pickle

        return pickle.loads(pickle.dumps(double))(4)

    assert list(process_world(2).run(program)) == [8, 8]


def test_a_notebooks_class_of_an_earlier_run_is_gone(process_world, cells) -> None:
    world = process_world(1)
    world.run(cells["saved"])
    assert list(world.run(lambda: hasattr(sys.modules["__main__"], "Config"))) == [False]
