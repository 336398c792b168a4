"""Tensor and sequence parallel train as one process does, and send and hold what the formulas say."""

import pytest
import torch
import torch.distributed as dist
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy

from course_lib import RankError, TinyGPT, World, batch
from course_lib.parallel import TensorParallelGPT, whole_state_dict
from course_lib.parallel.collectives import reduce_scatter
from course_lib.parallel.vocabulary import vocabulary_cross_entropy

SIZES = {"width": 16, "layers": 3, "heads": 4, "context": 12}


def model():
    torch.manual_seed(0)
    return TinyGPT(**SIZES)


def alone(steps=2):
    """Return the losses and the gradients of one process, after an update."""
    whole, losses = model(), []
    optimizer = torch.optim.SGD(whole.parameters(), lr=0.1)
    for step in range(steps):
        optimizer.zero_grad()
        inputs, targets = batch(step, 4, 12)
        loss = cross_entropy(whole(inputs).flatten(0, 1), targets.flatten())
        loss.backward()
        losses.append(loss.item())
        if step < steps - 1:
            optimizer.step()
    return losses, {name: param.grad for name, param in whole.named_parameters()}


def together(sequence_parallel, steps=2):
    cut, losses = TensorParallelGPT(model(), sequence_parallel=sequence_parallel), []
    optimizer = torch.optim.SGD(cut.parameters(), lr=0.1)
    for step in range(steps):
        optimizer.zero_grad()
        inputs, targets = batch(step, 4, 12)
        loss = cut.loss_of(cut(inputs), targets)
        loss.backward()
        losses.append(loss.item())
        if step < steps - 1:
            optimizer.step()
    for param in cut.parameters():
        param.data = param.grad
    return losses, whole_state_dict(cut)


@pytest.mark.parametrize("world_size", [1, 4])
@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_losses_and_gradients_equal_one_process(world_size, sequence_parallel) -> None:
    losses, grads = alone()
    for theirs, whole in World(world_size).run(together, sequence_parallel):
        assert theirs == pytest.approx(losses, rel=1e-5)
        for name, grad in grads.items():
            torch.testing.assert_close(whole[name], grad, rtol=1e-4, atol=1e-6)


def forward_and_backward(sequence_parallel) -> None:
    cut = TensorParallelGPT(model(), sequence_parallel=sequence_parallel)
    inputs, targets = batch(0, 4, 12)
    cut.loss_of(cut(inputs), targets).backward()


def test_two_all_reduces_of_activations_a_block_and_pass() -> None:
    run = World(4).run(forward_and_backward, False)
    activations = 4 * 12 * 16 * 4  # batch, length, width, bytes
    # One for the embedding and one for the head's input; three of the loss, which are as small as the tokens.
    in_blocks = 3 * 4
    assert run.comm[0].count("all_reduce") == in_blocks + 2 + 3
    assert run.comm[0].sent_bytes == 2 * 3 / 4 * ((in_blocks + 2) * activations + 3 * 4 * 12 * 4)


def test_sequence_parallel_sends_as_much_for_activations() -> None:
    run = World(4).run(forward_and_backward, True)
    activations = 4 * 12 * 16 * 4
    assert run.comm[0].count("reduce_scatter") == run.comm[0].count("all_gather") == 3 * 4 + 2
    norms_and_biases = 3 * (4 + 2) * 16 + 2 * 16 + 12 * 16
    small = 3 * 4 * 12 * 4 + norms_and_biases * 4
    assert run.comm[0].sent_bytes == 3 / 4 * 2 * (3 * 4 + 2) * activations + 2 * 3 / 4 * small


def kept_for_backward(sequence_parallel):
    cut = TensorParallelGPT(model(), sequence_parallel=sequence_parallel)
    kept = {}
    params = {param.untyped_storage().data_ptr() for param in cut.parameters()}

    def keep(x):
        kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        x = torch.randn(4, 12 // (dist.get_world_size() if sequence_parallel else 1), 16)
        y = cut.blocks[1](x)
    assert y.shape == x.shape
    return sum(nbytes for pointer, nbytes in kept.items() if pointer not in params)


def test_sequence_parallel_keeps_no_copies_between_the_matrices() -> None:
    copies, parts = (World(4).run(kept_for_backward, choice)[0] for choice in (False, True))
    assert parts < copies


def test_parameters_are_one_quarter_except_what_is_whole() -> None:
    def numel():
        return sum(param.numel() for param in TensorParallelGPT(model()).parameters())

    whole = sum(param.numel() for param in model().parameters())
    uncut = 3 * (4 + 2) * 16 + 2 * 16 + 12 * 16
    assert list(World(4).run(numel)) == [(whole - uncut) // 4 + uncut] * 4


def test_frozen_parameters_stay_frozen() -> None:
    def trained():
        whole = model().requires_grad_(False)
        whole.head.requires_grad_(True)
        return [name for name, param in TensorParallelGPT(whole).named_parameters() if param.requires_grad]

    assert World(2).run(trained)[1] == ["head.weight"]


@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 1000), (torch.bfloat16, 1)])
def test_the_loss_is_exact_for_large_scores_and_under_autocast(dtype, size) -> None:
    def loss():
        torch.manual_seed(0)
        scores, targets = (size * torch.randn(6, 8)).to(dtype), torch.tensor([0, 7, 3, 4, 5, 1])
        mine = scores.chunk(2, dim=1)[dist.get_rank()]
        return vocabulary_cross_entropy(mine, targets).item(), cross_entropy(scores.float(), targets).item()

    for ours, whole in World(2).run(loss):
        assert ours == pytest.approx(whole, rel=1e-6)


def test_tokens_masked_with_minus_infinity_have_torchs_loss_and_gradient() -> None:
    """The first column of each rank, which a rank without the target looks up."""

    def losses_and_gradients():
        targets = torch.tensor([1, 6, 3, 5])
        scores = torch.arange(32.0).view(4, 8).sin().index_fill(1, torch.tensor([0, 4]), -torch.inf).requires_grad_()
        part = scores.detach().chunk(2, dim=1)[dist.get_rank()].clone().requires_grad_()
        ours, whole = vocabulary_cross_entropy(part, targets), cross_entropy(scores, targets)
        ours.backward()
        whole.backward()
        return (ours, part.grad), (whole, scores.grad.chunk(2, dim=1)[dist.get_rank()])

    for ours, whole in World(2).run(losses_and_gradients):
        torch.testing.assert_close(ours, whole)


@pytest.mark.parametrize("targets", [[0, -100, 3, 4, -100, 1], [-100] * 6])
def test_a_target_of_minus_100_is_left_out_of_the_loss_and_its_gradient(targets) -> None:
    def losses_and_gradients():
        torch.manual_seed(0)
        scores = torch.randn(6, 8, requires_grad=True)
        part = scores.detach().chunk(2, dim=1)[dist.get_rank()].clone().requires_grad_()
        ours = vocabulary_cross_entropy(part, torch.tensor(targets))
        whole = cross_entropy(scores, torch.tensor(targets))
        ours.backward()
        whole.backward()
        return (ours, part.grad), (whole, scores.grad.chunk(2, dim=1)[dist.get_rank()])

    for (loss, grad), (whole, of_whole) in World(2).run(losses_and_gradients):
        torch.testing.assert_close(loss, whole, equal_nan=True)
        assert whole.isnan() or torch.allclose(grad, of_whole, atol=1e-6)


@pytest.mark.parametrize(
    ("tied", "message"),
    [(False, "4 heads cannot be shared by 3 ranks"), (True, "embedding and head are one weight")],
)
def test_what_cannot_be_cut_is_refused(tied, message) -> None:
    with pytest.raises(RankError, match=message):
        World(3).run(lambda: TensorParallelGPT(TinyGPT(**SIZES, tied=tied)))


def test_what_cannot_be_cut_into_equal_parts_is_refused() -> None:
    told = r"rank 1: dimension 1 of \(3, 5\) cannot be cut into 2 equal parts\. Choose a size that the number of ranks"
    with pytest.raises(RankError, match=told):
        World(2).run(lambda: reduce_scatter(torch.ones(3, 5), 1))


def with_penalty(whole, loss):
    """Return the loss and a gradient's norm, whose gradient goes through a backward."""
    (grad,) = torch.autograd.grad(loss, whole.positions.weight, create_graph=True)
    return loss + grad.square().sum()


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_gradients_of_gradients_equal_one_process(sequence_parallel) -> None:
    """They lacked what other ranks contribute to a backward, without a word."""
    whole, (inputs, targets) = model().double(), batch(0, 4, 12)
    with sdpa_kernel(SDPBackend.MATH):
        with_penalty(whole, cross_entropy(whole(inputs).flatten(0, 1), targets.flatten())).backward()

    def penalized():
        cut, (inputs, targets) = (
            TensorParallelGPT(model().double(), sequence_parallel=sequence_parallel),
            batch(0, 4, 12),
        )
        with_penalty(cut, cut.loss_of(cut(inputs), targets)).backward()
        for param in cut.parameters():
            param.data = param.grad
        return whole_state_dict(cut)

    with sdpa_kernel(SDPBackend.MATH):
        for grads in World(2).run(penalized):
            for name, param in whole.named_parameters():
                torch.testing.assert_close(grads[name], param.grad)


def test_a_model_that_computes_differently_is_refused() -> None:
    """A cut block computed its own attention, whatever `attend` the whole block had."""
    whole = model()
    whole.blocks[1].attend = lambda query, key, value: value
    with pytest.raises(RankError, match="this Block has its own `attend`, and tensor parallel would compute with that"):
        World(2).run(TensorParallelGPT, whole)
    whole = model()
    whole.blocks[1].down.bias = None
    with pytest.raises(RankError, match="down has no bias, which TensorParallelBlock adds"):
        World(2).run(TensorParallelGPT, whole)
