"""What each rank holds: every byte once, under what it is there for, when it is there and no longer."""

import math
import shutil

import pytest
import torch
import torch.distributed as dist
import torch.utils.checkpoint
from torch import nn
from torch._higher_order_ops.associative_scan import associative_scan
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention.flex_attention import flex_attention
from torch.nn.functional import linear

from course_lib import CourseError, World, mark
from course_lib.meter import MemoryReport
from course_lib.meter.ledger import history
from course_lib.meter.watching import operators

N = 1000
BYTES = 4 * N  # of N float32 elements
SINCE_TORCH_2_13 = pytest.mark.skipif(torch.__version__ < (2, 13), reason="does not compile modules on simulated ranks")


def measured(fn, *args, world_size: int = 1, **options) -> MemoryReport:
    """What rank 0 held."""
    report = World(world_size, **options).run(fn, *args).memory[0]
    for snapshot in (report, *report.marks.values()):
        assert sum(snapshot.by_category.values()) == snapshot.current_bytes
    return report


def held(snapshot) -> dict[str, int]:
    """The categories that hold anything."""
    return {name: nbytes for name, nbytes in snapshot.by_category.items() if nbytes}


# Each category


def test_parameters_gradients_and_optimizer_state() -> None:
    def program():
        net = nn.Linear(N, 1, bias=False)
        mark("model")
        net(torch.ones(1, N)).sum().backward()
        mark("backward")
        optimizer = torch.optim.Adam(net.parameters())
        optimizer.step()
        mark("step")
        optimizer.zero_grad()
        mark("zero_grad")
        return optimizer

    marks = measured(program).marks
    assert held(marks["model"]) == {"parameters": BYTES}
    assert held(marks["backward"]) == {"parameters": BYTES, "gradients": BYTES}
    assert held(marks["step"]) == {"parameters": BYTES, "gradients": BYTES, "optimizer": 2 * BYTES + 4}  # and `step`
    assert held(marks["zero_grad"]) == {"parameters": BYTES, "optimizer": 2 * BYTES + 4}


def test_a_label_used_again_keeps_its_last_snapshot_and_each_time() -> None:
    def program():
        kept = []
        for _ in range(2):
            kept.append(torch.ones(N))
            mark("made")
        return kept

    report = measured(program)
    assert report.marks["made"].current_bytes == 2 * BYTES
    (first, earlier), (last, later) = report.marked
    assert first == last == "made" and earlier < later == report.marks["made"].seconds


def test_what_is_freed_after_a_mark_is_not_dated_before_it() -> None:
    def program() -> None:
        kept = torch.ones(N)
        mark("made")
        del kept
        mark("freed")

    report = measured(program)
    (_, made), (_, freed) = report.marked
    allocation, free = report.timeline
    assert allocation.seconds < made <= free.seconds < freed and free.current_bytes == 0


def test_saved_for_backward_is_activations_until_backward() -> None:
    def program() -> None:
        weight = nn.Parameter(torch.zeros(N))
        y = (weight.exp() * 2).sum()
        mark("forward")
        y.backward()
        mark("backward")

    marks = measured(program).marks
    assert held(marks["forward"]) == {"parameters": BYTES, "activations": BYTES, "other": 4}
    assert held(marks["backward"]) == {"parameters": BYTES, "gradients": BYTES, "other": 4}


def test_an_input_that_is_saved_for_backward_is_an_activation() -> None:
    def program():
        weight = nn.Parameter(torch.zeros(N))
        x = torch.ones(N)
        mark("input")
        y = weight * x
        mark("forward")
        return y

    marks = measured(program).marks
    assert held(marks["input"]) == {"parameters": BYTES, "other": BYTES}
    assert held(marks["forward"]) == {"parameters": BYTES, "activations": BYTES, "other": BYTES}


@pytest.mark.parametrize("hooks", ["copies", "checkpoint"])
def test_what_hooks_make_to_be_saved_counts(hooks) -> None:
    def copies(fn, x):
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor.clone() + 0, lambda packed: packed):
            return fn(x)

    def checkpoint(fn, x):
        return torch.utils.checkpoint.checkpoint(fn, x, use_reentrant=False)

    def program() -> None:
        x = torch.ones(N, requires_grad=True)
        mark("before")
        y = (copies if hooks == "copies" else checkpoint)(lambda x: x.exp().sin(), x)
        mark("forward")
        y.sum().backward()
        del y
        mark("backward")

    report = measured(program)
    before, forward, backward = (report.marks[label].current_bytes for label in ("before", "forward", "backward"))
    # exp saves its result and sin what it was given: two copies; a checkpoint saves neither. Then there is y itself.
    assert forward - before == (3 * BYTES if hooks == "copies" else BYTES)
    assert backward - before == BYTES  # the gradient of x


def test_what_a_function_of_the_learners_own_saved_is_activations() -> None:
    class Half(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(torch.zeros(N))
            ctx.by_itself = torch.zeros(2 * N)
            return x / 2

        @staticmethod
        def backward(ctx, grad):
            return grad / 2

    def program():
        return Half.apply(torch.ones(1, requires_grad=True))

    assert held(measured(program)) == {"activations": 3 * BYTES, "other": 8}


def test_what_goes_to_a_collective_is_communication() -> None:
    def program():
        x, whole = torch.ones(N), torch.empty(2 * N)
        mark("before")
        dist.all_gather_single(whole, x)
        return x, whole

    report = measured(program, world_size=2)
    assert held(report.marks["before"]) == {"other": 3 * BYTES}
    assert held(report) == {"communication": 3 * BYTES}


def test_gathered_memory_is_a_parameters_once_a_parameter_points_at_it() -> None:
    def program() -> None:
        net, whole = nn.Linear(N, 1, bias=False), torch.empty(2 * N)
        dist.all_gather_single(whole, net.weight.data.flatten())
        net.weight.data = whole.view(1, 2 * N)
        net.weight.data = torch.empty(0)

    peak = measured(program, world_size=2).at_peak
    assert {name: nbytes for name, nbytes in peak.by_category.items() if nbytes} == {"parameters": 3 * BYTES}


def test_a_gradient_that_is_reduced_remains_a_gradient() -> None:
    def program():
        net = nn.Linear(N, 1, bias=False)
        net(torch.ones(1, N)).sum().backward()
        dist.all_reduce(net.weight.grad)
        return net

    assert held(measured(program, world_size=2)) == {"parameters": BYTES, "gradients": BYTES}


def test_masters_of_a_bf16_model_are_optimizer_state() -> None:
    def program():
        net = nn.Linear(N, 1, bias=False, dtype=torch.bfloat16)
        master = net.weight.detach().float().requires_grad_()
        optimizer = torch.optim.Adam([master])
        net(torch.ones(1, N, dtype=torch.bfloat16)).sum().backward()
        master.grad = net.weight.grad.float()
        optimizer.step()
        master.grad = None
        return net, master, optimizer

    expected = {"parameters": BYTES // 2, "gradients": BYTES // 2, "optimizer": 3 * BYTES + 4}
    assert held(measured(program)) == expected


def test_a_frozen_model_in_bf16_makes_no_masters_of_other_parameters() -> None:
    def program():
        reference = nn.Linear(N, 1, bias=False, dtype=torch.bfloat16).requires_grad_(False)
        shard = torch.zeros(N, requires_grad=True)
        optimizer = torch.optim.SGD([shard])
        return reference, shard, optimizer

    assert held(measured(program)) == {"parameters": BYTES // 2 + BYTES}


# Every byte once


def test_views_and_slices_add_nothing() -> None:
    def program():
        x = torch.zeros(N)
        return (
            x,
            x[10:],
            x.view(10, -1),
            x.detach(),
            x.data,
            torch.from_numpy(x.numpy()),
            x.T if x.ndim == 2 else x[None],
        )

    assert measured(program).current_bytes == BYTES


def test_in_place_operators_add_nothing() -> None:
    def program():
        x = torch.zeros(N)
        x += 1
        x.mul_(2)[::2].zero_()
        torch.add(x, 1, out=x)
        return x

    report = measured(program)
    assert report.current_bytes == BYTES
    assert [event.operator for event in report.timeline] == ["zeros"]


def test_measured_operators_with_numbers_give_what_unmeasured_ones_give() -> None:
    def program():
        made = []
        for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.complex64, torch.bool):
            x = torch.tensor([1, 0, 3]).to(dtype)
            i = 1 if dtype == torch.bfloat16 else 1j  # torch 2.15 gives their sum a dtype that it cannot add
            made += [x * 2.5, x * 2, x * True, x + i, 2 - x if dtype != torch.bool else ~x, x == 1]
            made += [torch.where(x == 1, x, 0.1), torch.tensor(0.1).to(dtype)]
            if dtype.is_floating_point or dtype.is_complex:
                x *= 0.1
                made += [x, x / 3, x**0.5]
        return made

    measured, unmeasured = (World(1, measure=measure).run(program)[0] for measure in (True, False))
    assert len(measured) == 60
    for one, other in zip(measured, unmeasured, strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert torch.equal(one, other)


def test_a_number_that_an_operator_reads_is_the_same_each_time() -> None:
    def program():
        x, y = torch.ones(3), torch.empty(3)
        with torch.inference_mode():
            torch.div(x, 2.5, out=y)
        functions = (torch.add, torch.mul, torch.div, torch.pow, torch.fmod, torch.eq, torch.copysign)
        numbers = 2.5, 2, True, 0.0, -0.0, 0, math.nan, 1e300
        for number in numbers:
            for function in functions:
                function(x, number, out=y).add_(1).zero_()
            x.clone().remainder_(number).fill_(7)
        return [torch.div(x, number, out=torch.empty(3))[0].item() for number in numbers]

    operators._number.cache_clear()  # as in a process in which nobody has read a number yet
    first, *others = (World(2, measure=measure).run(program)[0] for measure in (True, True, False))
    assert first[:6] == [pytest.approx(0.4), 0.5, 1, math.inf, -math.inf, math.inf] and math.isnan(first[6])
    assert first[7] == 0
    assert [other[:6] for other in others] == [first[:6]] * 2
    assert not operators._number(2.5, torch.float32).is_inference()


def test_tied_parameters_count_once() -> None:
    def program():
        a, b = nn.Linear(N, 1, bias=False), nn.Linear(N, 1, bias=False)
        b.weight = a.weight
        linear(torch.ones(1, N), a.weight + b.weight).sum().backward()
        return a, b

    assert held(measured(program)) == {"parameters": BYTES, "gradients": BYTES}


def test_a_parameter_that_is_a_view_keeps_the_rest_of_its_tensor() -> None:
    report = measured(lambda: nn.ParameterList([torch.zeros(N)[: N // 2]]))
    assert held(report) == {"parameters": BYTES}


def test_resizing_in_place() -> None:
    def program():
        x = torch.zeros(N)
        x.resize_(3 * N)
        mark("larger")
        x.untyped_storage().resize_(0)
        mark("freed")
        x.untyped_storage().resize_(BYTES)
        return x

    report = measured(program)
    assert [report.marks["larger"].current_bytes, report.marks["freed"].current_bytes] == [3 * BYTES, 0]
    assert (report.current_bytes, report.peak_bytes) == (BYTES, 3 * BYTES)


def test_a_resized_result_still_has_its_graph() -> None:
    def program() -> None:
        x, w = torch.ones(N), torch.ones(N, requires_grad=True)
        y = x * w
        y.untyped_storage().resize_(2 * BYTES)
        mark("forward")

    assert held(measured(program).marks["forward"]) == {"activations": BYTES, "other": 3 * BYTES}


def test_a_tensor_that_backward_frees_was_saved_for_it_although_it_was_resized_meanwhile() -> None:
    def program() -> None:
        x, w = torch.zeros(N), torch.ones(N, requires_grad=True)
        with torch.no_grad():
            x.untyped_storage().resize_(10 * BYTES)
        loss = (x * w).sum()
        del x
        loss.backward()

    largest = measured(program).at_peak.holdings[0]
    assert (largest.category, largest.total_bytes) == ("activations", 10 * BYTES)


def test_set_takes_another_storage() -> None:
    def program():
        x, y = torch.zeros(N), torch.zeros(2 * N)
        x.set_(y)
        return x

    assert measured(program).current_bytes == 2 * BYTES


def test_an_out_that_is_too_small_grows() -> None:
    def program():
        out = torch.empty(0)
        torch.ones(N, out=out)
        return out

    assert measured(program).current_bytes == BYTES


@pytest.mark.skipif(torch.__version__ < (2, 12), reason="torch 2.11 keeps one byte of a process's last barrier")
def test_what_a_different_rank_made_counts_there() -> None:
    def program():
        if dist.get_rank() == 0:
            torch.distributed.handed = torch.zeros(N)  # a module is the same on all ranks
            dist.barrier()
            dist.barrier()
            return None
        dist.barrier()
        mine = torch.distributed.handed
        del torch.distributed.handed
        mark("kept")
        dist.barrier()
        return mine

    maker, keeper = World(2).run(program).memory
    assert (maker.current_bytes, keeper.current_bytes) == (BYTES, 0)


# Freed means freed


def test_what_is_deleted_is_gone_and_the_peak_remembers_it() -> None:
    def program() -> None:
        x = torch.zeros(N)
        y = torch.zeros(N)
        del x
        z = torch.zeros(N)
        del y, z

    report = measured(program)
    assert (report.current_bytes, report.peak_bytes) == (0, 2 * BYTES)
    assert [event.current_bytes // BYTES for event in report.timeline] == [1, 2, 1, 2, 1, 0]


def test_parameters_that_a_variable_holds_are_not_freed() -> None:
    def program() -> None:
        net = nn.Linear(N, 1, bias=False)
        reference = net.weight.detach()
        net.weight.data = torch.empty(0)
        mark("still")
        del reference
        mark("freed")

    marks = measured(program).marks
    (still,) = marks["still"].still_held
    assert still.nbytes == marks["still"].current_bytes == BYTES
    assert still.holders == ("variable `reference` of program",)
    assert (marks["freed"].current_bytes, marks["freed"].still_held) == (0, ())


def test_parameters_that_autograd_holds_are_not_freed() -> None:
    def program():
        net = nn.Linear(N, N, bias=False)
        y = net(torch.ones(1, N, requires_grad=True))
        net.weight.data = torch.empty(0)
        return y

    (still,) = measured(program).still_held
    assert still.nbytes == N * BYTES
    assert [holder for holder in still.holders if "autograd" in holder] == ["autograd, which saved it for MmBackward0"]


def test_parameters_that_a_notebooks_global_holds_are_not_freed() -> None:
    cell: dict = {"__name__": "__main__", "nn": nn, "torch": torch, "N": N, "KEPT": []}
    exec(
        "def keep_in_a_global():\n"
        "    net = nn.Linear(N, 1, bias=False)\n"
        "    KEPT.append(net.weight.data)\n"
        "    net.weight.data = torch.empty(0)\n",
        cell,
    )
    (still,) = measured(cell["keep_in_a_global"]).still_held
    assert still.holders == ("something in global variable `KEPT`",)


def test_parameters_that_an_attribute_or_a_list_holds_are_not_freed() -> None:
    class Keeper:
        pass

    def program():
        net = nn.Linear(N, 1, bias=False)
        keeper = Keeper()
        keeper.copy = net.weight.data
        keeper.many = [net.weight.data]
        net.weight.data = torch.empty(0)
        return keeper

    (still,) = measured(program).still_held
    assert still.holders == ("attribute `copy` of a Keeper", "something in attribute `many` of a Keeper")


# Reports


def test_the_peak_tells_what_was_held_and_which_line_made_the_last() -> None:
    def program():
        a = [torch.zeros(N) for _ in range(3)]
        b = torch.ones(2 * N)
        return len(a), len(b)

    peak = measured(program).at_peak
    assert (peak.total_bytes, peak.operator, peak.line.source) == (5 * BYTES, "ones", "b = torch.ones(2 * N)")
    assert [(h.count, h.block_bytes, h.operator, h.layout) for h in peak.holdings] == [
        (3, BYTES, "zeros", "float32 [1000]"),
        (1, 2 * BYTES, "ones", "float32 [2000]"),
    ]
    assert "3 x         4,000 bytes  other          float32 [1000] made by zeros" in str(peak)


def test_a_mark_that_comes_again_stands_for_the_last_time() -> None:
    def program() -> None:
        held = []
        for _ in range(3):
            held.append(torch.zeros(N))
            mark("step")

    assert measured(program).marks["step"].current_bytes == 3 * BYTES


def test_variables_count_at_the_end_also_where_torch_wraps_the_function() -> None:
    @torch.no_grad()
    def program():
        x = torch.zeros(N)
        return len(x)

    assert measured(program).current_bytes == BYTES


def test_mark_does_nothing_where_nothing_is_measured() -> None:
    assert mark("here") is None
    assert World(1, measure=False).run(lambda: mark("here"))[0] is None


def test_a_run_that_was_not_measured_says_so() -> None:
    run = World(2, measure=False).run(dist.get_rank)
    with pytest.raises(CourseError, match=r"its world was made with measure=False\. Make it without that"):
        run.memory  # noqa: B018


def test_the_text_has_every_category() -> None:
    text = str(measured(lambda: torch.zeros(N)))
    assert text.startswith(
        "rank 0: 4,000 bytes held, 4,000 at the peak so far\n  parameters                     0 bytes"
    )
    assert text.endswith("\n  other                      4,000 bytes")


def test_a_long_history_is_condensed_and_still_adds_up(monkeypatch) -> None:
    def program():
        kept = [torch.zeros(N)]
        for _ in range(5000):
            kept[0] = torch.zeros(N)
        return kept

    monkeypatch.setattr(history, "DETAILED", 2000)
    report = measured(program)
    assert len(report.timeline) < 4100  # of 10,001 changes
    assert sum(sum(event.deltas.values()) for event in report.timeline) == report.current_bytes == BYTES
    assert max(event.highest_bytes for event in report.timeline) == report.peak_bytes == 2 * BYTES


# CUDA's allocator


def test_the_allocator_rounds_as_cuda_does() -> None:
    def program():
        # 15.26 MiB in 16; 11 MiB in 12, of which exactly 1 MiB is left; and a block less, of which more is left
        sizes = (1, 2**20, 16_000_000, 11 * 2**20, 11 * 2**20 - 512)
        return [torch.empty(size, dtype=torch.uint8) for size in sizes]

    used = (512, 2**20, 16 * 2**20, 12 * 2**20, 11 * 2**20 - 512)
    assert measured(program, allocator="cuda").current_bytes == sum(used)


def test_an_unknown_allocator_is_refused() -> None:
    with pytest.raises(CourseError, match=r"World\(allocator='jemalloc'\): there is no such allocator here"):
        World(2, allocator="jemalloc")


def test_gradients_of_each_sample_can_be_taken_on_a_measured_rank() -> None:
    def per_sample() -> torch.Tensor:
        layer, x = nn.Linear(4, 2), torch.arange(12.0).reshape(3, 4)

        def loss(parameters, sample):
            return (torch.func.functional_call(layer, parameters, (sample,)) * 2).sum()

        gradients = torch.vmap(torch.func.grad(loss), (None, 0))(dict(layer.named_parameters()), x)
        mark("after them")
        torch.ones(100)
        return gradients["weight"]

    run = World(1).run(per_sample)
    assert torch.equal(run[0][2], torch.tensor([[16.0, 18.0, 20.0, 22.0]] * 2))
    assert run.memory[0].peak_bytes >= run.memory[0].marks["after them"].current_bytes + 400  # it is looked at again


def test_vjp_calls_back_on_a_measured_rank() -> None:
    def program() -> list[float]:
        x, found = torch.ones(3), []
        for fn in (lambda x: x / 2, lambda x: x * 2, lambda x: 1 / x):
            y, back = torch.func.vjp(fn, x)
            found.append(back(torch.ones_like(y))[0].sum().item())
        return found

    assert list(World(2).run(program)) == [[1.5, 6.0, -3.0]] * 2


class Doubled(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x * 2

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


@pytest.mark.parametrize("options", [{}, {"measure": False}, {"gpus": True}, {"strict": True}], ids=str)
@pytest.mark.parametrize("backend", ["simulated", "processes"])
def test_higher_order_operators_run_on_ranks(backend: str, options: dict[str, bool]) -> None:
    """They found no kernel for the key that ranks have: transformers builds its masks with such a vmap."""

    def program():
        x = torch.arange(3.0)
        scanned = associative_scan(torch.add, x, 0, combine_mode="generic")
        return torch.vmap(Doubled.apply)(x).tolist(), torch.func.jacrev(Doubled.apply)(x[:1]).item(), scanned.tolist()

    run = World(2, backend=backend, **options).run(program)
    assert list(run) == [([0, 2, 4], 2, [0, 1, 3])] * 2


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("options", [{}, {"gpus": True}, {"strict": True}], ids=str)
@pytest.mark.parametrize("backend", ["simulated", "processes"])
def test_flex_attention_and_branches_run_on_a_measured_rank(backend: str, options: dict[str, bool]) -> None:
    def program():
        x = torch.ones(1, 1, 16, 8, device="cuda" if torch.cuda.is_available() else "cpu")
        torch.compiler.reset()  # a different run of this process may have compiled them already
        y = flex_attention(x, x, x, score_mod=lambda score, batch, head, q, k: score + q - k)
        z = torch.cond(y.sum() > 0, lambda x: x + 1, lambda x: x - 1, (y,))
        return z.device == x.device, z.sum().item()

    run = World(1, backend=backend, **options).run(program)
    assert run[0] == (True, 256)
    assert run.memory[0].current_bytes >= 3 * 16 * 8 * 4


# Tensors and functions of other kinds


def test_a_sparse_tensor_has_the_bytes_of_its_indices_and_values() -> None:
    assert held(measured(lambda: torch.ones(N).to_sparse())) == {"other": 8 * N + BYTES}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_a_nested_tensor_has_the_bytes_of_its_parts() -> None:
    def program():
        layer = nn.TransformerEncoderLayer(8, nhead=2, dim_feedforward=16, batch_first=True)
        encoder = nn.TransformerEncoder(layer, num_layers=1).eval()
        with torch.no_grad():
            encoder(torch.ones(2, 3, 8), src_key_padding_mask=torch.tensor([[False, True, True], [False] * 3]))
        mark("before")
        nested = torch.nested.nested_tensor([torch.ones(N), torch.ones(2 * N)])
        mark("after")
        return nested

    marks = measured(program).marks
    assert marks["after"].current_bytes - marks["before"].current_bytes == 3 * BYTES


def test_a_fake_tensor_has_no_bytes() -> None:
    def program():
        with FakeTensorMode():
            return [torch.ones(N) * 2]

    assert measured(lambda: len(program())).peak_bytes == 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # which torch's compiler reads
@SINCE_TORCH_2_13
def test_compiling_a_function_leaves_the_meter_out() -> None:
    def program(compiled):
        from torch._dynamo import convert_frame

        frames, compile_frame = [], convert_frame._compile
        convert_frame._compile = lambda code, *args, **kwargs: (
            frames.append(code.co_filename),
            compile_frame(code, *args, **kwargs),
        )[1]
        torch.manual_seed(0)
        net = nn.Linear(8, 4)

        def step(x):
            loss = net(x).square().mean()
            loss.backward()  # here the compiled function ends, and a new one begins
            return loss * 2

        run = torch.compile(step, backend="aot_eager") if compiled else step
        losses = [run(torch.ones(size, 8)).item() for size in (2, 3, 5)]
        convert_frame._compile = compile_frame
        mark("end")
        return losses, [name for name in frames if "course_lib" in name]

    eager, compiled = (World(1, timeout=300).run(program, how) for how in (False, True))
    assert compiled[0] == (pytest.approx(eager[0][0]), [])
    assert compiled.memory[0].marks["end"].current_bytes == eager.memory[0].marks["end"].current_bytes


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile's default backend needs a C++ compiler")
def test_memory_that_compiled_code_allocates_is_counted() -> None:
    def program():
        torch._inductor.config.cpp_cache_precompile_headers = False
        torch._inductor.config.compile_threads = 1
        layers = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))
        for backend in ("aot_eager", "inductor"):
            loss = torch.compile(layers, backend=backend)(torch.ones(2, 8))
            mark(backend)
            del loss

    marks = World(1, backend="processes", timeout=300).run(program).memory[0].marks
    expected, found = (marks[backend].by_category["activations"] for backend in ("aot_eager", "inductor"))
    assert expected > 0 and found == pytest.approx(expected, rel=0.01)


def test_a_lazy_layer_counts_from_its_first_forward_and_a_mark_may_be_a_number() -> None:
    def program() -> None:
        layer = nn.LazyLinear(4)
        mark(0)  # type: ignore[arg-type]
        layer(torch.ones(2, 3))
        mark(1)  # type: ignore[arg-type]

    marks = World(1).run(program).memory[0].marks
    assert [marks[label].by_category["parameters"] for label in ("0", "1")] == [0, 64]
