"""Each rank has its own classes, as it has its own variables. What it returns is of the notebook's classes."""

import collections
import gc
import weakref

import pytest
import torch

from course_lib import World

CELLS = """
import collections, dataclasses, enum, functools, typing, weakref
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

SCALE = 1

class Count:
    n, items = 0, []

    @classmethod
    def up(cls):
        cls.n += 1
        return cls.n

class Base:
    made = 0
    def __init__(self):
        Base.made += 1

class Sub(Base):
    other: "Sub"
    def __init__(self):
        super().__init__()
        Sub.other = self

class Net(nn.Module):
    calls = 0
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)
    def forward(self, x):
        Net.calls += 1
        return self.layer(x)
    def scaled(self):
        return SCALE

class Double(torch.autograd.Function):
    calls = []
    @staticmethod
    def forward(ctx, x):
        Double.calls.append(dist.get_rank())
        return 2 * x
    @staticmethod
    def backward(ctx, grad):
        return 2 * grad

@dataclasses.dataclass(frozen=True)
class Config:
    value: int
    seen: typing.ClassVar[list] = []

class Point(typing.NamedTuple):
    x: int

class Mode(enum.Enum):
    A = 1
    def scaled(self):
        return SCALE

class Wrong(Exception):
    def __init__(self, first, second):
        super().__init__(f"{first} {second}")

@dataclasses.dataclass(slots=True)
class Slotted:
    value: int

class Pair(collections.namedtuple("Pair", "x y")):
    def total(self):
        return self.x + self.y

class Tokens(tuple):
    pass

class Text(Tokens):
    pass

class Bytes(int):
    pass

class Packed(bytes):
    pass

class Key(str):
    __slots__ = ()

@dataclasses.dataclass(slots=True, weakref_slot=True)
class Weak:
    value: int

class Linked:
    __slots__ = "value", "__dict__", "__weakref__"

def counts():
    Count.n += 1
    Count.items.append(dist.get_rank())
    dist.barrier()
    return Count.n, Count.items, Count.up()

def inherits():
    objects = [Sub(), Sub()]
    dist.barrier()
    return Base.made, Sub.other is objects[1]

def calls():
    net, x = Net(), torch.ones(1, 2, requires_grad=True)
    Double.apply(net(net(x))).sum().backward()
    dist.barrier()
    return Net.calls, Double.calls

def uses():
    Config.seen.append(dist.get_rank())
    dist.barrier()
    try:
        raise Wrong(1, 2)
    except Wrong as error:
        text = str(error)
    fields = [field.name for field in dataclasses.fields(Config)]
    return Config.seen, Config(1) == Config(1), Mode(1) is Mode.A, text, fields

def returns():
    rank = dist.get_rank()
    points = collections.deque([(Point(rank),)])
    objects = {"config": Config(rank), "points": points, "mode": Mode.A, "slotted": Slotted(3)}
    return objects, nn.Sequential(Net()), functools.partial(print, Sub())

def layouts():
    linked, error = Linked(), RuntimeError(1)
    linked.value, linked.b, linked.a = 1, 2, 3
    error.tokens = Tokens((4,))
    text = Text((5,))
    text.name = "text"
    return Pair(1, 2), {"rows": [text]}, {Bytes(6): Packed(b"7"), Key("k"): Weak(8)}, linked, error

class Doubled(Net):
    def __init__(self):
        super().__init__()
        self.stored = self.forward
    def forward(self, x):
        return 2 * super().forward(x)

class Descent(torch.optim.SGD):
    def step(self, closure=None):
        return super().step(closure)

def stores():
    net = Doubled()
    optimizer = Descent(net.parameters(), lr=0.1)
    return net, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1)

def hooks():
    net, seen = Doubled(), []
    net.layer.weight.register_hook(lambda grad: seen.append(1))
    net.kinds = [type(module) for module in net.modules()]
    return net, seen, lambda kind=Net: (kind(), Net(), Doubled()(torch.ones(1, 2)))

def functions():
    @functools.wraps(torch.sum)
    def wrapped(kind=Net, first=Config(1), *, other=Config):
        return kind(), first, other(2), Config(3)
    wrapped.seen = [Config(4)]
    return wrapped

class Typed:
    def __init__(self, value):
        self.value = value
    def __eq__(self, other):
        return type(self) is type(other) and self.value == other.value
    def __hash__(self):
        return hash((type(self), self.value))

def tables(at):
    key = Typed(1)
    return [{key: 2}, {(key, 1): 3}, {key}, frozenset([key]), collections.Counter([key])][at]

class OfRank:
    def __hash__(self):
        return dist.get_rank()

def cannot_be_copied():
    return {OfRank(): 1}, (Net,), (number for number in range(3))

def returns_classes():
    return [type(module) for module in Doubled().modules()], {"kept": Count}, Count

def deletes():
    return weakref.proxy(Base()), Base()

def catches():
    try:
        raise Wrong(1, dist.get_rank())
    except Wrong as error:
        return error

def shards():
    return fully_shard(Net())

def scaled():
    return Net().scaled(), Mode.A.scaled()
"""


@pytest.mark.parametrize(
    ("program", "right"),
    [
        ("counts", [(1, [r], 2) for r in range(3)]),
        ("inherits", [(2, True)] * 3),
        ("calls", [(2, [r]) for r in range(3)]),
        ("uses", [([r], True, True, "1 2", ["value"]) for r in range(3)]),
    ],
)
def test_each_rank_sets_its_own_attributes_of_a_class(local_world, cells, program, right) -> None:
    world = local_world(3)
    for _ in range(2):
        assert list(world.run(cells[program])) == right
    count = cells["Count"]
    assert (count.n, count.items, cells["Base"].made, cells["Net"].calls) == (0, [], 0, 0)
    assert cells["Double"].calls == cells["Config"].seen == []


def test_a_result_is_of_the_notebooks_classes(local_world, cells) -> None:
    world = local_world(2)
    for rank, (objects, model, call) in enumerate(world.run(cells["returns"])):
        assert objects == {
            "config": cells["Config"](rank),
            "points": collections.deque([(cells["Point"](rank),)]),
            "mode": cells["Mode"].A,
            "slotted": cells["Slotted"](3),
        }
        assert objects["mode"] is cells["Mode"].A
        assert type(objects["points"][0][0]) is cells["Point"]
        assert isinstance(model[0], cells["Net"])
        assert isinstance(call.args[0], cells["Base"])


@pytest.mark.parametrize("backend", ["simulated", "dryrun", "processes"])
def test_a_result_of_any_layout_is_of_the_notebooks_classes(cells, backend) -> None:
    pair, rows, table, linked, error = next(iter(World(2, backend=backend).run(cells["layouts"])))
    text, (number, key), (packed, weak) = rows["rows"][0], table, table.values()
    objects = [pair, text, number, packed, key, weak, linked, error.tokens]
    names = ["Pair", "Text", "Bytes", "Packed", "Key", "Weak", "Linked", "Tokens"]
    assert [type(one) for one in objects] == [cells[name] for name in names]
    assert objects[:6] == [(1, 2), (5,), 6, b"7", "k", cells["Weak"](8)]
    assert table[cells["Bytes"](6)] == b"7"
    assert (pair.total(), text.name, linked.value, linked.b, linked.a, error.tokens) == (3, "text", 1, 2, 3, (4,))
    assert isinstance(text, cells["Tokens"])
    assert weakref.ref(linked)() is linked


@pytest.mark.parametrize("backend", ["simulated", "dryrun"])
def test_an_object_that_the_notebook_made_can_be_returned(cells, backend) -> None:
    text = cells["Text"]((1, 2))
    returned = next(iter(World(2, backend=backend).run(lambda: text)))
    assert returned == text
    assert type(returned) is cells["Text"]


def test_a_returned_object_can_call_what_it_has_stored(local_world, cells) -> None:
    net, optimizer, _ = local_world(2).run(cells["stores"])[1]
    net.stored(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert isinstance(optimizer, cells["Descent"])


def test_what_a_simulated_rank_returned_stays_one_with_its_functions(cells) -> None:
    net, seen, make = World(2).run(cells["hooks"])[1]
    net(torch.ones(1, 2)).sum().backward()
    assert seen == [1]
    assert net.kinds == [cells["Doubled"], torch.nn.Linear]
    assert all(isinstance(one, cells["Net"]) for one in make()[:2])


def test_a_returned_function_has_the_notebooks_classes(local_world, cells) -> None:
    function, config = local_world(2).run(cells["functions"])[1], cells["Config"]
    net, *configs = function()
    assert isinstance(net, cells["Net"])
    assert [*configs, *function.seen] == [config(1), config(2), config(3), config(4)]


def test_returned_tables_find_keys_that_hash_their_class(local_world, cells) -> None:
    world, key = local_world(2), cells["Typed"](1)
    for at, table in enumerate([{key: 2}, {(key, 1): 3}, {key}, frozenset([key]), collections.Counter([key])]):
        assert world.run(cells["tables"], at)[1] == table


def test_a_simulated_rank_can_return_what_cannot_be_copied(cells) -> None:
    table, kinds, numbers = World(2).run(cells["cannot_be_copied"])[1]
    assert (len(table), len(kinds), list(numbers)) == (1, 1, [0, 1, 2])


def test_returned_classes_are_the_notebooks(local_world, cells) -> None:
    of_modules, table, alone = local_world(2).run(cells["returns_classes"])[1]
    assert of_modules == [cells["Doubled"], torch.nn.Linear]
    assert table["kept"] is alone is cells["Count"]


def test_a_weak_reference_to_what_a_simulated_rank_deleted_can_be_returned(cells) -> None:
    assert isinstance(World(2).run(cells["deletes"])[1][1], cells["Base"])
    assert type(World(2).run(lambda: weakref.proxy(set()))[1]) is weakref.ProxyType


def test_an_exception_that_a_simulated_rank_returned_can_be_caught_by_its_class(cells) -> None:
    error = World(2).run(cells["catches"])[1]
    with pytest.raises(cells["Wrong"], match="1 1"):
        raise error


def test_a_sharded_model_that_a_simulated_rank_returned_is_of_the_notebooks_class(cells) -> None:
    assert all(isinstance(model, cells["Net"]) for model in World(2).run(cells["shards"]))


def test_methods_read_a_variable_that_the_notebook_has_set_since_a_run(local_world, cells) -> None:
    world = local_world(2)
    world.run(cells["returns"])
    cells["SCALE"] = 5
    assert cells["Net"]().scaled() == cells["Mode"].A.scaled() == 5
    assert [scales[0] for scales in world.run(cells["scaled"])] == [5, 5]


def test_an_object_of_an_earlier_run_can_be_passed_to_the_next(local_world, cells) -> None:
    def program(config, kind):
        return type(config) is kind, config == kind(1)

    world = local_world(2)
    config = world.run(cells["returns"])[1][0]["config"]
    assert list(world.run(program, config, cells["Config"])) == [(True, True)] * 2


@pytest.mark.parametrize("program", ["counts", "returns", "layouts", "returns_classes", "shards"])
def test_nothing_of_a_ranks_classes_stays_after_a_simulated_run(cells, program) -> None:
    def classes():
        gc.collect()
        return sum(issubclass(type(one), type) and one.__module__ == "__main__" for one in gc.get_objects())

    world = World(2)
    world.run(cells[program])
    before = classes()
    for _ in range(3):
        world.run(cells[program])
    assert classes() == before
