"""Programs that are written for GPUs run where there are none, and their memory is counted as on a GPU."""

import copy
import functools
import math
import os
import re
import types
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.distributed import checkpoint
from torch.distributed._state_dict_utils import _copy_state_dict, _create_cpu_state_dict
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    CPUOffload,
    CPUOffloadPolicy,
    FullStateDictConfig,
    FullyShardedDataParallel,
    MixedPrecisionPolicy,
    StateDictType,
    fully_shard,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.jit import _builtins
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from course_lib import CourseError, CourseWarning, RankError, World, production
from course_lib.world.torch_hooks.gpus import training
from course_lib.world.torch_hooks.gpus.devices import placing

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has GPUs")

MB = 10**6


@pytest.fixture
def gpus(local_world):
    """Makes a world of so many ranks with pretended GPUs, on each backend."""
    return functools.partial(local_world, gpus=True)


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))


def test_a_rank_may_choose_which_gpus_it_sees(gpus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")  # of the machine: it says nothing about pretended GPUs

    def program():
        before = torch.cuda.device_count()
        os.environ["CUDA_VISIBLE_DEVICES"] = "0,2" if dist.get_rank() == 0 else "1"
        return before, torch.cuda.device_count()

    assert list(gpus(3).run(program)) == [(3, 2), (3, 1), (3, 1)]


def batch(rank):
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(rank))


def mean_gradient():
    """The gradient of `mlp`'s first weights over the batches of two ranks."""
    model = mlp()
    model(torch.cat([batch(0), batch(1)])).square().mean().backward()
    return model[0].weight.grad


# -- devices -----------------------------------------------------------------------------------------------------------


def test_a_gpu_is_named_in_every_way_that_torch_takes(gpus) -> None:
    def program():
        rank = dist.get_rank()
        torch.cuda.set_device(rank)
        torch.cuda.set_device(-1)  # changes nothing
        here = torch.device("cuda", rank)
        made = [
            torch.zeros(3, device=rank),
            torch.zeros(3, device="cuda"),
            torch.tensor([1.0], device=here),
            torch.arange(3, device=f"cuda:{rank}"),
            torch.zeros(3).to(rank),
            torch.zeros(3).to(here, torch.bfloat16),
            torch.zeros(3).to(device="cuda", non_blocking=True),
            torch.zeros(3).cuda(),
            torch.zeros(3).cuda(rank, non_blocking=True),
            torch.as_tensor([1.0], device=here),
            torch.zeros(3).new_ones(2, device=here),
            torch.zeros(3, device=here).new_tensor([1.0]),
            torch.zeros(3, device=here).new(2),
            torch.zeros(3).type_as(torch.zeros(1, device=here)),
            torch.zeros(3, dtype=torch.long).type_as(torch.zeros(1, device=here)),
            torch.ones_like(torch.zeros(3), device=here),
            torch.randn(2, device=here, generator=torch.Generator(device=here)),
            torch.nn.Parameter(torch.zeros(3, device=here)),
            nn.Linear(2, 2).cuda().weight,
            nn.Linear(2, 2, device=here).weight,
            nn.Linear(2, 2).to(here).double().weight,
        ]
        with torch.device("cuda"):
            made += [torch.zeros(3), nn.Linear(2, 2).bias]
        results = [made[0] + 1, made[0][:2].clone(), made[0] * torch.tensor(2.0), torch.stack([made[1], made[4]])]
        empty = torch.nn.Linear(2, 2, device="meta").to_empty(device="cuda")
        devices = {str(one.device) for one in [*made, *results, empty.weight]}
        assert torch.device(rank) == here and torch.cuda.current_device() == rank == made[0].get_device()
        host = [
            torch.zeros(3).new_tensor([1.0]),
            made[0].type_as(torch.zeros(1)),
            made[0].new_tensor([1.0], device="cpu"),
        ]
        host += [torch.zeros(3), made[0].cpu(), made[0].to("cpu"), torch.zeros_like(made[0], device="cpu")]
        return devices, {str(one.device) for one in [*host, *nn.Linear(2, 2).cuda().cpu().parameters()]}

    assert list(gpus(2).run(program)) == [({f"cuda:{rank}"}, {"cpu"}) for rank in range(2)]


def test_the_program_is_told_of_gpus_and_torch_is_told_the_truth(gpus) -> None:
    def program():
        told = torch.cuda.is_available(), torch.cuda.device_count(), torch.accelerator.current_accelerator().type
        asks = types.FunctionType(tells.__code__, {"__name__": "torch.optim.adam", "torch": torch})
        return told, asks(torch.zeros(2, device="cuda"))

    def tells(x):
        return torch.cuda.is_available(), torch.accelerator.is_available(), x.device.type

    assert gpus(2).run(program)[1] == ((True, 2, "cuda"), (False, False, "cpu"))


def test_the_gpu_says_that_it_is_pretended(gpus) -> None:
    def program():
        properties = torch.cuda.get_device_properties(0)
        return (
            torch.cuda.get_device_name(),
            properties.name,
            properties.total_memory,
            torch.cuda.get_device_capability(),
        )

    assert gpus(1).run(program)[0] == ("pretended GPU", "pretended GPU", 80 * 10**9, (8, 0))


def test_a_gpu_that_is_not_there_is_refused_as_cuda_does(gpus) -> None:
    with pytest.raises(
        RankError, match=r"rank 1 of 2 raised AcceleratorError: CUDA error: invalid device ordinal.*2 pret"
    ):
        gpus(2).run(lambda: torch.zeros(2).to(dist.get_rank() + 1))


def test_a_copy_between_host_and_gpu_shares_no_memory(gpus) -> None:
    def program():
        host = torch.zeros(2)
        on_gpu = host.to("cuda")
        back, same = on_gpu.cpu(), on_gpu.to("cuda")
        on_gpu += 1
        return host.tolist(), back.tolist(), same.tolist()

    assert gpus(1).run(program)[0] == ([0, 0], [0, 0], [1, 1])


def test_streams_events_and_seeds_do_nothing(gpus) -> None:
    def program():
        stream, start, end = (
            torch.cuda.Stream(),
            torch.cuda.Event(enable_timing=True),
            torch.cuda.Event(enable_timing=True),
        )
        torch.cuda.manual_seed_all(1)
        start.record()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream), torch.cuda.device(0):
            x = torch.ones(2, device="cuda", requires_grad=True)
            x.sum().backward()
        x.record_stream(stream)
        end.record()
        torch.cuda.synchronize()
        torch.cuda.set_rng_state(torch.cuda.get_rng_state())
        torch.cuda.empty_cache()
        return isinstance(stream, torch.cuda.Stream), start.elapsed_time(end) >= 0, x.grad.tolist()

    assert gpus(1).run(program)[0] == (True, True, [1, 1])


def test_a_random_state_of_the_gpu_is_set_again(gpus) -> None:
    def program():
        def drawn_twice(get, set_again):
            state = get()
            first = torch.rand(4, device="cuda").tolist()
            set_again(state)
            return first == torch.rand(4, device="cuda").tolist()

        cuda = torch.cuda
        return drawn_twice(cuda.get_rng_state, cuda.set_rng_state), drawn_twice(
            cuda.get_rng_state_all, cuda.set_rng_state_all
        )

    assert gpus(1).run(program)[0] == (True, True)


# -- training ----------------------------------------------------------------------------------------------------------


def test_data_parallel_with_device_ids_averages_gradients_and_moves_inputs(gpus) -> None:
    def program():
        rank = dist.get_rank()
        seen = []
        model = DistributedDataParallel(mlp().to(rank), device_ids=[rank], output_device=rank)
        model.module.register_forward_pre_hook(lambda module, inputs: seen.append(str(inputs[0].device)))
        model(batch(rank)).square().mean().backward()
        dist.barrier(device_ids=[rank])
        return model.module[0].weight.grad.cpu(), seen

    for rank, (gradient, seen) in enumerate(gpus(2).run(program)):
        torch.testing.assert_close(gradient, mean_gradient())
        assert seen == [f"cuda:{rank}"]


def test_data_parallel_with_the_gpu_of_a_different_rank_is_refused(gpus) -> None:
    def program() -> None:
        torch.cuda.set_device(dist.get_rank())
        DistributedDataParallel(mlp().to("cuda"), device_ids=[0])

    with pytest.raises(RankError, match=r"rank 1 of 2 raised .* Pass device_ids=\[1\]\."):
        gpus(2).run(program)


def test_data_parallel_with_device_ids_refuses_a_model_that_was_not_moved(gpus) -> None:
    with pytest.raises(RankError, match=r"raised ValueError: .*device_ids and output_device arguments only work with"):
        gpus(1).run(lambda: DistributedDataParallel(mlp(), device_ids=[0]))


def test_fsdp2_shards_a_model_of_the_host_on_the_gpu(gpus) -> None:
    def program():
        rank = dist.get_rank()
        model = mlp()
        for layer in (model[0], model[2]):
            fully_shard(layer, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
        fully_shard(model)
        held = torch.cuda.memory_allocated()
        model(batch(rank).to("cuda")).square().mean().backward()
        gradient = model[0].weight.grad
        model.zero_grad()
        model[0].set_gradient_divide_factor(1.0)  # NCCL's own operation, which gloo lacks
        model(batch(rank).to("cuda")).square().mean().backward()
        return held, gradient.device.type, gradient.full_tensor(), model[0].weight.grad.full_tensor()

    for held, device, gradient, total in gpus(2).run(program):
        assert held == 4 * 512 and device == "cuda"  # a shard of each of four tensors
        torch.testing.assert_close(gradient, mean_gradient(), rtol=0.05, atol=0.01)
        torch.testing.assert_close(total, 2 * gradient, rtol=0.01, atol=0.001)


def test_fsdp1_shards_a_model_of_the_host_on_the_gpu(gpus) -> None:
    def program(**options):
        rank = dist.get_rank()
        torch.cuda.set_device(rank)
        policy = ModuleWrapPolicy({nn.Linear})
        model = FullyShardedDataParallel(mlp(), auto_wrap_policy=policy, sync_module_states=True, **options)
        held = torch.cuda.memory_allocated()
        loss = model(batch(rank)).square().mean()
        loss.backward()
        return held, loss.device.type, sum(p.grad.square().sum() for p in model.parameters())

    for options in ({}, {"device_id": 0}, {"cpu_offload": CPUOffload(offload_params=True)}):
        run = gpus(2).run(program, **options)
        assert [(held, device) for held, device, _ in run] == [(1024, "cuda")] * 2  # a shard of each of two layers
        assert all(norm > 0 for _, _, norm in run)


@pytest.mark.filterwarnings("ignore:FSDP.state_dict_type:FutureWarning", "ignore::Warning:torch.distributed.fsdp")
def test_fsdp1_offloads_a_whole_state_dict_to_the_host_and_saves_its_optimizer(gpus) -> None:
    def program():
        # Imported here: the default of its `process_group` is the group that exists at the import.
        from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

        torch.cuda.set_device(dist.get_rank())
        model = FullyShardedDataParallel(
            mlp(), auto_wrap_policy=ModuleWrapPolicy({nn.Linear}), device_id=dist.get_rank()
        )
        options = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
        with FullyShardedDataParallel.state_dict_type(model, StateDictType.FULL_STATE_DICT, options):
            state = {name: (value.device.type, value.clone()) for name, value in model.state_dict().items()}
            optimizer, scaler = torch.optim.Adam(model.parameters()), ShardedGradScaler()
            scaler.scale(model(batch(dist.get_rank())).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
            saved = FullyShardedDataParallel.optim_state_dict(model, optimizer)
        return state, [*saved.get("state", ())]

    (whole, saved), (nothing, _) = gpus(2).run(program)
    assert saved == list(whole)
    assert nothing == {}
    assert {name: device for name, (device, _) in whole.items()} == dict.fromkeys(mlp().state_dict(), "cpu")
    for name, (_, value) in whole.items():
        torch.testing.assert_close(value, mlp().state_dict()[name])


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::Warning:torch.distributed.fsdp")
def test_sharded_states_of_fsdp1_and_of_an_optimizer_are_loaded_again(gpus, tmp_path) -> None:
    def program():
        sharded = FullyShardedDataParallel(mlp().cuda())
        with FullyShardedDataParallel.state_dict_type(sharded, StateDictType.SHARDED_STATE_DICT):
            checkpoint.save(sharded.state_dict(), checkpoint_id=tmp_path)
            loaded = sharded.state_dict()
            checkpoint.load(loaded, checkpoint_id=tmp_path)
        model = mlp().cuda()
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam)
        model(batch(0).cuda()).sum().backward()
        optimizer.step()
        optimizer.consolidate_state_dict()
        states = [optimizer.state_dict() if dist.get_rank() == 0 else None]
        dist.broadcast_object_list(states)
        optimizer.load_state_dict(states[0])
        return sum(bool(state) for state in optimizer.state.values())

    assert sum(gpus(2).run(program)) == 4


def test_float16_autocast_computes_in_bfloat16_and_the_scaler_steps(gpus) -> None:
    def program():
        model = mlp().cuda()
        optimizer, scaler = torch.optim.SGD(model.parameters(), lr=1.0), torch.amp.GradScaler("cuda")
        with torch.autocast(device_type="cuda", dtype=torch.float16):
            out = model(batch(0).cuda())
        loss = out.float().square().mean()
        before = model[0].weight.detach().clone()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        return out.dtype, bool((model[0].weight != before).any()), scaler.get_scale()

    assert gpus(1).run(program)[0] == (torch.bfloat16, True, 65536.0)


def test_a_mesh_of_gpus_carries_tensor_parallel_attention(gpus) -> None:
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.qkv, self.out = nn.Linear(8, 24, bias=False), nn.Linear(8, 8, bias=False)

        def forward(self, x):
            q, k, v = self.qkv(x).unflatten(-1, (4, 3, -1)).movedim(-2, 0)
            q, k, v = (one.transpose(1, 2) for one in (q, k, v))
            y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.out(y.transpose(1, 2).flatten(-2))

    def program():
        mesh = init_device_mesh("cuda", (2,), mesh_dim_names=("tp",))
        plan = {"qkv": ColwiseParallel(use_local_output=False), "out": RowwiseParallel()}
        x = torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(1))
        expected = Attention()(x)
        model = parallelize_module(Attention(), mesh, plan)
        y = model(x.cuda())
        y.sum().backward()
        return mesh.device_type, model.qkv.weight.device.type, (y.cpu() - expected).abs().max().item()

    for told, device, difference in gpus(2).run(program):
        assert (told, device) == ("cuda", "cuda") and difference < 1e-6


def test_attention_over_a_sequence_in_shards_is_torchs_own(gpus) -> None:
    """Of its parts, it would have wrong values. Torch's own takes half a minute to find its way."""

    def program():
        x = distribute_tensor(torch.ones(1, 2, 4, 8).cuda(), init_device_mesh("cuda", (2,)), [Shard(2)])
        return training._local_attention(lambda *args: [type(arg) is DTensor for arg in args])(x, x, x)

    assert list(gpus(2).run(program)) == [[True] * 3] * 2


def test_tensors_are_distributed_over_a_mesh_of_gpus(gpus) -> None:
    def program():
        mesh = DeviceMesh("cuda", torch.arange(2))
        x = distribute_tensor(torch.arange(4.0), mesh, [Shard(0)])
        assert isinstance(x, DTensor)
        return x.device.type, x.to_local().tolist(), x.full_tensor().sum().item(), torch.cuda.memory_allocated() > 0

    assert list(gpus(2).run(program)) == [("cuda", [0, 1], 6, True), ("cuda", [2, 3], 6, True)]


@pytest.mark.parametrize("momentum", [0.1, None])
def test_sync_batch_norm_is_batch_norm_over_all_ranks(gpus, momentum) -> None:
    def program():
        rank = dist.get_rank()
        model = nn.SyncBatchNorm.convert_sync_batchnorm(nn.BatchNorm2d(3, momentum=momentum)).to(rank)
        model = DistributedDataParallel(model, device_ids=[rank])
        x = images(rank).to(rank).requires_grad_()
        y = model(x)
        (y**3).sum().backward()
        trained = model.module.running_mean, model.module.running_var, model.module.weight.grad * 2
        return y.detach(), x.grad, [one.cpu() for one in trained], model.eval()(x).sum().item()

    def images(rank):
        return torch.randn(4, 3, 2, 2, generator=torch.Generator().manual_seed(rank))

    whole, x = nn.BatchNorm2d(3, momentum=momentum), torch.cat([images(0), images(1)]).requires_grad_()
    y = whole(x)
    (y**3).sum().backward()
    trained = [whole.running_mean, whole.running_var, whole.weight.grad]
    run = gpus(2).run(program)
    torch.testing.assert_close(torch.cat([run[0][0], run[1][0]]), y.detach())
    torch.testing.assert_close(torch.cat([run[0][1], run[1][1]]), x.grad)
    for _, _, got, _ in run:
        torch.testing.assert_close(got, trained)
    assert run[0][3] + run[1][3] == pytest.approx(whole.eval()(x).sum().item(), abs=1e-3)


def test_sync_batch_norm_of_numbers_far_from_zero_and_of_a_rank_without_rows(gpus) -> None:
    """The mean of squares minus the square of the mean was negative for a constant channel: outputs were NaN."""
    cases = [(123.456, 0, 10, 10), (123.456, 0, 128, 129), (1000, 1, 20, 257), (0, 1, 10, 0)]

    def rows(mean, spread, *counts):
        return (mean + spread * torch.randn(sum(counts), 2, generator=torch.Generator().manual_seed(1))).split(counts)

    def output_and_gradient(norm, x):
        y = norm(x.requires_grad_())
        (y * x.detach().sin()).sum().backward()
        return y.detach(), x.grad

    def program():
        mine = (rows(*case)[dist.get_rank()].cuda() for case in cases)
        return [output_and_gradient(nn.SyncBatchNorm(2).cuda(), x) for x in mine]

    for case, *ours in zip(cases, *gpus(2).run(program), strict=True):
        exact = output_and_gradient(nn.BatchNorm1d(2).double(), torch.cat(rows(*case)).double())
        for got, expected in zip(zip(*ours, strict=True), exact, strict=True):
            torch.testing.assert_close(torch.cat(got).double(), expected, rtol=1e-4, atol=1e-4)


def test_sync_batch_norm_keeps_its_statistics_in_float32_under_autocast(gpus) -> None:
    def program():
        norm = nn.SyncBatchNorm(3).cuda()
        with torch.autocast("cuda"):
            y = norm(torch.randn(8, 3, 2, 2, device="cuda").half())
        return y.dtype, norm.running_mean.dtype

    assert list(gpus(2).run(program)) == [(torch.float16, torch.float32)] * 2


def test_a_checkpoint_is_loaded_to_the_gpu_that_map_location_names(gpus, tmp_path) -> None:
    def program():
        rank = dist.get_rank()
        model = mlp().to(rank)
        optimizer = torch.optim.Adam(model.parameters())
        model(batch(0).to(rank)).sum().backward()
        optimizer.step()
        file = tmp_path / f"{rank}.pt"
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        places = f"cuda:{rank}", {"cuda:0": f"cuda:{rank}"}, torch.device("cuda", rank), "cpu", None
        places += lambda storage, place: storage.cuda(rank), lambda storage, place: storage
        loaded = [torch.load(file, map_location=place)["model"]["0.weight"].device.type for place in places]
        optimizer.load_state_dict(torch.load(file, map_location="cpu")["optimizer"])
        return loaded, optimizer.state[model[0].weight]["exp_avg"].device.type

    assert gpus(2).run(program)[1] == (["cuda", "cuda", "cuda", "cpu", "cpu", "cuda", "cpu"], "cuda")


def test_pinned_batches_of_a_data_loader_stay_on_the_host_until_they_are_moved(gpus) -> None:
    def program():
        data = TensorDataset(torch.arange(8.0))
        for (x,) in DataLoader(data, batch_size=4, pin_memory=True):
            before = x.device.type
            x = x.pin_memory().to("cuda", non_blocking=True)
        return before, x.device.type, x.tolist()

    assert gpus(1).run(program)[0] == ("cpu", "cuda", [4, 5, 6, 7])


def test_compiling_is_skipped(gpus) -> None:
    def program():
        @torch.compile(mode="max-autotune")
        def double(x):
            return 2 * x

        model = torch.compile(mlp().cuda())
        model.compile()
        return double(torch.ones(1, device="cuda")).item(), type(model).__name__

    assert gpus(1).run(program)[0] == (2.0, "Sequential")


def test_groups_take_nccl_and_a_device(gpus) -> None:
    def program():
        group = dist.new_group([0, 1], backend="nccl", device_id=torch.device("cuda", dist.get_rank()))
        x = torch.ones(1, device="cuda")
        dist.all_reduce(x, group=group)
        _, subgroups = dist.new_subgroups()  # of as many ranks as a machine has GPUs
        return x.item(), dist.is_nccl_available() and torch.cuda.nccl.version() >= (2, 10), len(subgroups)

    assert list(gpus(2).run(program)) == [(2.0, True, 1)] * 2


@pytest.mark.filterwarnings("ignore:.*(all_gather_into|reduce_scatter)_tensor:FutureWarning")
@pytest.mark.parametrize(
    "names", [("all_gather_into_tensor", "reduce_scatter_tensor"), ("all_gather_single", "reduce_scatter_single")]
)
@pytest.mark.parametrize("shape", [(12,), (2, 2, 3), (4, 3)])
def test_parts_of_a_collective_are_stacked_or_flat_as_nccl_takes_them(gpus, names, shape) -> None:
    def program():
        gather, reduce = getattr(dist, names[0]), getattr(dist, names[1])
        whole, part = torch.empty(shape, device="cuda"), torch.full((2, 3), float(dist.get_rank()), device="cuda")
        gather(whole, input_tensor=part)
        gathered = whole.flatten().tolist()
        reduce(part, whole)
        return gathered, part.tolist()

    if not hasattr(dist, names[0]):
        pytest.skip("this torch has only the older names")
    expected = [[0.0] * 6 + [1.0] * 6] * 2
    run = gpus(2).run(program)
    assert [gathered for gathered, _ in run] == expected
    assert [part for _, part in run] == [[[2.0 * rank] * 3] * 2 for rank in range(2)]


def test_a_hook_compresses_gradients_to_bfloat16(gpus) -> None:
    def program():
        rank = dist.get_rank()
        model = DistributedDataParallel(mlp().to(rank), device_ids=[rank])
        model.register_comm_hook(None, default_hooks.bf16_compress_hook)
        model(batch(rank)).square().mean().backward()
        return model.module[0].weight.grad.cpu()

    for grad in gpus(2).run(program):
        torch.testing.assert_close(grad, mean_gradient(), rtol=0.02, atol=1e-3)


def test_fsdp2_offloads_parameters_and_gradients_to_the_host(gpus) -> None:
    def program():
        model = mlp().to("cuda")
        fully_shard(model, offload_policy=CPUOffloadPolicy())
        devices = set()
        for _ in range(2):  # the second backward adds to the gradient
            model(batch(dist.get_rank()).to("cuda")).square().mean().backward()
            devices |= {one.device.type for one in (model[0].weight, model[0].weight.grad)}
        return devices, model[0].weight.grad.full_tensor() / 2

    for devices, gradient in gpus(2).run(program):
        assert devices == {"cpu"}
        torch.testing.assert_close(gradient, mean_gradient())


def test_an_asynchronous_save_does_not_mix_with_the_calls_of_training(tmp_path) -> None:
    def program():
        model = mlp().cuda()
        fully_shard(model)
        for step in range(4):
            saved = checkpoint.async_save({"model": model.state_dict()}, checkpoint_id=tmp_path / str(step))
            for _ in range(4):
                model(batch(step).cuda()).square().mean().backward()
            saved.result()

    World(2, backend="processes", gpus=True, timeout=60).run(program)
    assert all((tmp_path / str(step) / ".metadata").exists() for step in range(4))


@pytest.mark.parametrize("backend", [None, "cpu:gloo,cuda:nccl", "nccl"])
def test_an_asynchronous_save_needs_a_group_for_the_host(backend, tmp_path) -> None:
    def program():
        dist.init_process_group(backend)
        checkpoint.async_save({"weight": torch.ones(2)}, checkpoint_id=tmp_path).result()

    with pytest.raises(RankError, match="initializing process group with") if backend == "nccl" else nullcontext():
        World(1, backend="processes", gpus=True).run(program)


def test_a_handle_is_missed_under_a_default_device(gpus) -> None:
    def program():
        torch.set_default_device("cuda")
        handle = dist.all_reduce(torch.ones(2), async_op=True)
        torch.set_default_device("cpu")
        return str(handle)

    with pytest.warns(CourseWarning, match=r"both ranks never waited for all_reduce #1 at .*handle = "):
        gpus(2).run(program)


# -- memory ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_recipe_for_the_zero_redundancy_optimizer_prints_its_memory(gpus, tmp_path) -> None:
    """Of layers of 400 x 400. Lesson 11 runs it as it is published, with the published figures."""
    recipe = tmp_path / "recipe.py"
    published = (Path(production.__file__).parent / "zero_recipe.py").read_text()
    recipe.write_text(published.replace("2000", "400"))
    runs = []
    gpus(2, timeout=300).run_file(recipe, then=runs.append)
    printed = [re.findall(r"(\d+) MB", run.output[0]) for run in runs]
    assert printed == [["12", "25", "38", "53"], ["12", "25", "38", "65"]]


def test_only_memory_that_the_program_put_on_the_gpu_is_counted(gpus) -> None:
    def program():
        data = torch.zeros(MB)  # 4 MB on the host
        chosen = data[:250_000].clone() + 1
        x = chosen.to("cuda")  # 1 MB
        y = x + 1
        del x, y
        z = torch.zeros(500_000, device="cuda")  # 2 MB
        return torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated(), z.numel() + data.numel()

    run = gpus(1).run(program)
    assert run[0][:2] == (2_000_384, 2_000_896)  # multiples of 512
    assert (run.memory[0].current_bytes, run.memory[0].peak_bytes) == run[0][:2]


RNN = nn.utils.rnn
MADE_OF_NOTHING = {
    "one_hot": lambda x: nn.functional.one_hot(x.long(), 4),
    "pad_sequence": lambda x: RNN.pad_sequence([x[0], x[1, :2]]),
    "pad_packed": lambda x: RNN.pad_packed_sequence(RNN.pack_padded_sequence(x, torch.full((128,), 128)))[0],
    "max_pool1d": lambda x: nn.functional.max_pool1d(x, 2),
    "vander": lambda x: torch.vander(x[0], 4),
    "sparse": lambda x: x.to_sparse().indices(),
    "dense": lambda x: x.to_sparse().to_dense(),
}


@pytest.mark.parametrize("operator", MADE_OF_NOTHING)
def test_results_that_are_made_of_nothing_are_where_the_inputs_are(gpus, operator) -> None:
    compute = MADE_OF_NOTHING[operator]

    def program():
        x = torch.ones(128, 128)
        there = compute(x)
        assert (there.device.type, torch.cuda.memory_allocated()) == ("cpu", 0)
        x = x.cuda()
        here = compute(x)
        with placing(True):
            compute(x)
            assert torch.zeros(1).device.type == "cuda"
        del x
        return here.device.type, torch.cuda.memory_allocated() - here.nbytes, torch.equal(here, there)

    device, difference, same = gpus(1).run(program)[0]
    assert (device, same) == ("cuda", True)
    assert 0 <= difference <= 1024  # blocks are multiples of 512; the lengths of a packed sequence


def test_results_of_functional_collectives_are_where_the_inputs_are(gpus) -> None:
    def program():
        part, operators, name = torch.ones(500, 500), torch.ops._c10d_functional, dist.group.WORLD.group_name
        whole = operators.wait_tensor(operators.all_gather_into_tensor(part, 2, name))
        assert (whole.device.type, torch.cuda.memory_allocated()) == ("cpu", 0)

        mesh = init_device_mesh("cuda", (2,))
        part = part.cuda()
        moves = [(Shard(0), Replicate()), (Shard(0), Shard(1)), (Partial(), Shard(0)), (Partial(), Replicate())]
        held = []
        for source, target in moves:
            before = torch.cuda.memory_allocated()
            moved = DTensor.from_local(part, mesh, [source]).redistribute(placements=[target]).to_local()
            held.append((moved.device.type, (torch.cuda.memory_allocated() - before) // 1000, (moved * 2).device.type))
            del moved
        fully_shard(layer := nn.Linear(500, 500, bias=False))
        return held, layer.weight.full_tensor().device.type

    for held, device in gpus(2).run(program):
        assert [size for _, size, _ in held] == [2000, 1000, 500, 1000]
        assert {one for first, _, then in held for one in (first, then)} == {device} == {"cuda"}


@pytest.mark.filterwarnings("ignore::FutureWarning")  # torch 2.13 has new names for both
def test_a_functional_collective_of_a_result_that_nobody_has_waited_for(gpus) -> None:
    def program():
        whole = funcol.all_gather_tensor(torch.ones(4, 4, device="cuda"), 0, dist.group.WORLD)
        part = funcol.reduce_scatter_tensor(whole, "sum", 0, dist.group.WORLD)
        return (part * 1).device.type

    assert list(gpus(2).run(program)) == ["cuda", "cuda"]


def test_a_deep_copy_is_where_the_tensor_is(gpus) -> None:
    def program():
        model = nn.Linear(512, 512, bias=False)
        best = copy.deepcopy(model.state_dict())
        assert (best["weight"].device.type, torch.cuda.memory_allocated()) == ("cpu", 0)
        model.cuda()
        optimizer = torch.optim.Adam(model.parameters())
        model(torch.ones(1, 512, device="cuda")).sum().backward()
        optimizer.step()
        before = torch.cuda.memory_allocated()
        best, states = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
        held = torch.cuda.memory_allocated() - before
        same = torch.equal(best["weight"], model.weight)
        return best["weight"].device.type, states["state"][0]["step"].device.type, held, same

    assert gpus(1).run(program)[0] == ("cuda", "cpu", 3 * 2**20, True)


@pytest.mark.parametrize("pin_memory", [False, True])
def test_tensors_that_are_saved_on_the_host_are_on_the_gpu_while_backward_needs_them(gpus, pin_memory) -> None:
    def program():
        x = torch.ones(8, MB // 32, device="cuda", requires_grad=True)  # 1 MB
        with save_on_cpu(pin_memory=pin_memory):
            y = x.sin().sin().sin()
        held = torch.cuda.memory_allocated()
        saved = y.grad_fn._saved_self
        copied = torch.cuda.memory_allocated() - held
        del saved
        y.backward(torch.ones_like(y))
        return held, copied, x.grad.device.type, x.grad[0, 0].item()

    held, copied, device, gradient = gpus(1).run(program)[0]
    assert (held, copied, device) == (2_000_896, 1_000_448, "cuda")  # x and y; the second sine, which was saved
    assert gradient == pytest.approx(math.cos(1) * math.cos(math.sin(1)) * math.cos(math.sin(math.sin(1))))


@pytest.mark.parametrize("hooks", ["save_on_cpu", "own"])
def test_a_result_that_is_saved_on_the_host_leaves_the_gpu(gpus, hooks) -> None:
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, on_host):
            ctx.save_for_backward(x, on_host)
            return 2 * x

        @staticmethod
        def backward(ctx, gradient):
            devices.append([one.device.type for one in ctx.saved_tensors])
            return 2 * gradient, None

    devices, packed = [], []

    def pack(one):
        packed.append(one.device.type)
        return one.device, one.to("cpu")

    def program():
        x = torch.ones(8, MB // 32, device="cuda", requires_grad=True)  # 1 MB
        own = saved_tensors_hooks(pack, lambda packed: packed[1].to(packed[0]))
        with save_on_cpu() if hooks == "save_on_cpu" else own:
            y = Doubled.apply(x, torch.ones(3)).relu().tanh().relu().sigmoid() * torch.tensor(2.0)
        held = torch.cuda.memory_allocated()
        y.backward(torch.ones_like(y))
        return held, x.grad.device.type, devices, packed

    packed_by_own = ["cuda", "cpu", *["cuda"] * 4, "cpu"] if hooks == "own" else []
    assert gpus(1).run(program)[0] == (2_000_896, "cuda", [["cuda", "cpu"]], packed_by_own)  # x and y


def test_a_state_dict_that_is_offloaded_is_on_the_host(gpus) -> None:
    def program():
        model = nn.Linear(500, 500, bias=False).cuda()  # 1 MB
        state = model.state_dict()
        for pin_memory in (False, True):
            host = [_copy_state_dict(state, _create_cpu_state_dict(state, pin_memory=pin_memory))["weight"]]
        fully_shard(sharded := nn.Linear(8, 8, bias=False))
        for module in (model, sharded):
            host.append(get_model_state_dict(module, options=StateDictOptions(cpu_offload=True))["weight"])
        model.weight.data.zero_()
        return [one.device.type for one in host], torch.cuda.memory_allocated(), float(host[1].abs().sum()) > 0

    assert list(gpus(2).run(program)) == [(["cpu"] * 3, 1_000_448 + 512, True)] * 2


def test_a_loss_in_chunks_and_its_gradients_are_on_the_gpu(gpus) -> None:
    chunks = pytest.importorskip("torch.nn.modules.linear_cross_entropy_options", exc_type=ImportError)

    def program():
        options = chunks.LinearCrossEntropyOptions()
        weight, x = (torch.ones(size, 64, device="cuda", requires_grad=True) for size in (2000, 1024))
        loss = nn.functional.linear_cross_entropy(x, weight, torch.zeros(1024).long().cuda(), options=options)
        loss.backward()
        return {one.device.type for one in (loss, weight.grad, x.grad)}

    assert gpus(1).run(program)[0] == {"cuda"}


def test_a_model_on_the_host_is_not_counted(gpus) -> None:
    run = gpus(1).run(lambda: [mlp(), torch.optim.Adam(mlp().parameters())])
    assert run.memory[0].peak_bytes == 0 == run.memory[0].current_bytes


def test_states_of_an_optimizer_count_as_its_own_after_it_is_gone(gpus) -> None:
    def train():
        model = nn.Linear(1024, 1024, bias=False).cuda()
        optimizer = torch.optim.Adam(model.parameters())  # its first state, `step`, is on the CPU
        model(torch.ones(1, 1024, device="cuda")).sum().backward()
        optimizer.step()

    def program():
        train()

    assert gpus(1).run(program).memory[0].at_peak.by_category["optimizer"] == 8 * 1024**2


def test_adam_computes_with_all_tensors_at_once_as_on_a_gpu(gpus) -> None:
    def program():
        model = nn.Sequential(*[nn.Linear(512, 512, bias=False) for _ in range(4)]).to("cuda")
        optimizer = torch.optim.Adam(model.parameters())
        model(torch.ones(1, 512, device="cuda")).sum().backward()
        optimizer.step()
        torch.cuda.reset_peak_memory_stats()
        optimizer.step()
        return torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated()

    assert gpus(1).run(program)[0] == 4 * 2**20  # the square roots of all four


def test_reset_peak_memory_stats_leaves_the_peak_of_the_run(gpus) -> None:
    def program():
        dist.all_reduce(torch.zeros(2 * MB, device="cuda"))
        torch.cuda.reset_peak_memory_stats()
        at_reset = torch.cuda.max_memory_allocated()
        small = torch.zeros(MB // 4, device="cuda")
        del small
        return at_reset, torch.cuda.max_memory_allocated(), torch.cuda.memory_stats()["allocated_bytes.all.peak"]

    run = gpus(1).run(program)
    assert run[0] == (0, 1_000_448, 1_000_448)
    assert run.memory[0].peak_bytes == 8_000_000 - 8_000_000 % -512


def test_memory_functions_agree(gpus) -> None:
    def program():
        x = torch.zeros(MB, device="cuda")
        free, total = torch.cuda.mem_get_info()
        reserved, stats = torch.cuda.memory_reserved(), torch.cuda.memory_stats()
        assert stats["allocated_bytes.all.current"] == torch.cuda.memory_allocated() == total - free >= x.nbytes
        assert reserved % 2**21 == 0 and reserved >= torch.cuda.max_memory_reserved() >= x.nbytes
        return total

    assert gpus(1).run(program)[0] == 80 * 10**9


def test_a_rank_whose_gpu_is_full_raises_out_of_memory_at_its_line(local_world) -> None:
    def program():
        model = nn.Linear(500, 500, bias=False).cuda()  # 1 MB
        kept = []
        for _ in range(1 + dist.get_rank()):
            kept.append(torch.zeros(3 * MB // 4, device="cuda"))  # 3 MB
        return model, kept

    with pytest.raises(RankError) as caught:
        local_world(2, gpus=6e6).run(program)
    message = str(caught.value)
    assert "rank 1 of 2 raised OutOfMemoryError: CUDA out of memory. Tried to allocate 3,000,320 bytes" in message
    assert "has 6,000,000 bytes and holds 4,000,768: parameters 1,000,448, other 3,000,320." in message
    assert "kept.append(torch.zeros(3 * MB // 4" in message
    assert "Next: look at the largest part of what the GPU holds." in message
    assert "`other` that grows is often a list of results: keep numbers, or `y.detach().cpu()`." in message


def test_equal_ranks_that_are_out_of_memory_share_one_line(local_world) -> None:
    with pytest.raises(RankError, match=r"both ranks raised OutOfMemoryError.*\n  ranks 0, 1 raised at .*\nNext: "):
        local_world(2, gpus=6e6).run(lambda: torch.zeros(2 * MB, device="cuda"))


def test_a_program_that_computes_on_the_host_puts_nothing_on_its_gpu(gpus) -> None:
    def program():
        model = DistributedDataParallel(nn.Linear(100, 100))
        model(torch.randn(4, 100)).sum().backward()

    assert [memory.peak_bytes for memory in gpus(2).run(program).memory] == [0, 0]


def test_a_program_may_catch_out_of_memory_and_take_a_smaller_batch(local_world) -> None:
    def program():
        size = 4 * MB
        while True:
            try:
                return torch.zeros(size, device="cuda").numel(), torch.cuda.max_memory_allocated()
            except torch.cuda.OutOfMemoryError:
                size //= 2

    run = local_world(1, gpus=5e6).run(program)
    assert run[0] == (MB, 4_000_256) and run.memory[0].peak_bytes == 4_000_256


# -- the world ---------------------------------------------------------------------------------------------------------


def test_torch_is_as_before_after_the_run(gpus) -> None:
    def program():
        return torch.cuda.is_available(), str(torch.zeros(2).to("cuda").device)

    owners = (torch, torch.cuda, torch.Tensor, nn.Module, dist, torch.optim.Optimizer, Replicate, _builtins)
    before = [dict(vars(owner)) for owner in owners]
    world = gpus(1)
    assert world.run(program)[0] == (True, "cuda:0")
    for owner, names in zip(owners, before, strict=True):
        assert {name for name in names | vars(owner) if vars(owner).get(name) is not names.get(name)} == set()
    without = World(1, backend=world.backend)
    assert without.run(torch.cuda.is_available)[0] is False
    with pytest.raises(RankError, match=r"Torch not compiled with CUDA|Found no NVIDIA driver"):
        without.run(program)


def test_gpus_without_measured_memory_run_the_same_program(local_world) -> None:
    def program():
        rank = dist.get_rank()
        model = DistributedDataParallel(mlp().to(rank), device_ids=[rank])
        model(batch(rank)).square().mean().backward()
        snapshot = model.module[0].weight.grad.cpu()
        model.module[0].weight.grad.zero_()
        return snapshot, torch.cuda.max_memory_allocated()

    for gradient, peak in local_world(2, gpus=True, measure=False).run(program):
        torch.testing.assert_close(gradient, mean_gradient())
        assert peak == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backend": "nccl"}, r"World\(gpus=True\): only the backends 'simulated' and 'processes' pretend GPUs"),
        (
            {"gpus": 4},
            r"World\(gpus=4\): say gpus=True, and each rank has a pretended GPU of 80 GB. Or say how many bytes",
        ),
        ({"gpus": "yes"}, r"World\(gpus='yes'\): say gpus=True"),
        ({"gpus": 80e9, "measure": False}, r"World\(gpus=80000000000.0, measure=False\): only measured memory"),
    ],
)
def test_a_world_that_cannot_pretend_says_why(options, message) -> None:
    with pytest.raises(CourseError, match=message):
        World(2, **{"gpus": True, **options})


def test_a_machine_with_gpus_does_not_pretend(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(CourseError, match=r"this machine has GPUs.*backend='nccl'"):
        World(2, gpus=True)
