"""Lesson 13: its references compute on several ranks what one process computes."""

import pytest
import torch
from torch.nn import functional as F

from course_lib import World
from course_lib.exercises import normal
from course_lib.lessons.tensor import attention, column_linear, cross_entropy, embedding, mlp, sequence_mlp
from course_lib.lessons.tensor.data import linear, my_part
from course_lib.lessons.tensor.quiz import block_sent_bytes, least_width

WIDTH, TOKENS, SEED = 4, 8, 3


def mlp_alone(x, up, down):
    return down(F.gelu(up(x)))


def attention_alone(x, fused, out, heads):
    query, key, value = (each.unflatten(2, (heads, -1)).transpose(1, 2) for each in (x @ fused.t()).chunk(3, 2))
    attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
    return attended.transpose(1, 2).flatten(2) @ out.t()


def sequence_alone(x, norm, up, down):
    return mlp_alone(norm(x), up, down)


def look_up(solution):
    return embedding.one_step(solution, torch.tensor([5, 0, 3, 4, 7, 5]), my_part(normal(8, WIDTH, seed=1), 0), SEED)


def score(solution):
    return cross_entropy.one_step(solution, my_part(500 * normal(3, 8, seed=1), 1), torch.tensor([0, 7, 4]))


MATRICES = {"gradient of up weight": 0, "gradient of up bias": 0, "gradient of down weight": 1}


@pytest.mark.parametrize(
    ("step", "alone", "together", "cut_dims"),
    [
        (lambda f: mlp.one_step(f, SEED, WIDTH, TOKENS), mlp_alone, mlp.mlp, MATRICES),
        (lambda f: sequence_mlp.one_step(f, SEED, WIDTH, TOKENS), sequence_alone, sequence_mlp.sequence_mlp,
            MATRICES | {"output": 0, "gradient of x": 0}),
        (lambda f: attention.one_step(f, SEED, 2, 3, 4), attention_alone, attention.attention,
            {"gradient of fused": "sum", "gradient of out": "sum"}),
        (look_up, F.embedding, embedding.embedding, {"gradient of rows": 0}),
        (score, F.cross_entropy, cross_entropy.cross_entropy, {"gradient of scores": 1}),
    ],
    ids=["mlp", "sequence_mlp", "attention", "embedding", "cross_entropy"],
)  # fmt: skip
def test_a_reference_gives_the_output_and_the_gradients_of_one_process(step, alone, together, cut_dims) -> None:
    (expected,) = World(1).run(step, alone)
    ranks = World(2).run(step, together)

    for name, value in expected.items():
        parts, dim = [rank[name] for rank in ranks], cut_dims.get(name)
        joined = sum(parts) if dim == "sum" else parts[0] if dim is None else torch.cat(parts, dim)
        torch.testing.assert_close(joined, value, rtol=1e-4, atol=1e-5)


def test_column_parallel_layers_give_the_features_of_a_whole_layer() -> None:
    weight, bias, x = normal(6, WIDTH, seed=1), normal(6, seed=2), normal(3, WIDTH, seed=5)

    ranks = World(2).run(lambda: column_linear.column_linear(linear(weight, bias))(x).detach())

    torch.testing.assert_close(torch.cat(list(ranks), 1), F.linear(x, weight, bias))


@pytest.mark.parametrize("world_size", [2, 4])
def test_the_quiz_knows_what_a_block_sends(world_size) -> None:
    def block() -> None:
        x = normal(1, TOKENS, 12 * 4, seed=1).requires_grad_()
        attended = attention.attention(x, normal(3 * 48, 48, seed=2), normal(48, 48, seed=3), 4)
        up, down = (linear(my_part(normal(48, 48, seed=4), dim), normal(48, seed=5)) for dim in (0, 1))
        up.bias = torch.nn.Parameter(my_part(up.bias.detach(), 0))
        mlp.mlp(attended[0], up, down).sum().backward()

    run = World(world_size).run(block)
    assert run.comm[0].sent_bytes == block_sent_bytes(TOKENS, 48, world_size, 4)


def test_the_quiz_knows_from_which_width_a_block_computes_as_long_as_its_all_reduces_take() -> None:
    world_size, flops_per_byte, tokens = 8, 1500, 10
    width = least_width(world_size, flops_per_byte)

    sent_in_forward = block_sent_bytes(tokens, width, world_size, 2) / 2
    flops_in_forward = 2 * 12 * width**2 * tokens / world_size
    assert flops_in_forward == flops_per_byte * sent_in_forward
