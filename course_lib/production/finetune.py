"""Fine-tune a small language model on questions with answers: torchrun --nproc-per-node 2 finetune.py --epochs 2"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

IGNORED = -100  # the label of a token that is not learned


class Answers(Dataset[tuple[Tensor, Tensor]]):
    """Sequences of tokens. Only those of the answer have labels; a long question leaves no room for its answer."""

    def __init__(self, examples: int, length: int, vocabulary: int) -> None:
        generator = torch.Generator().manual_seed(72)
        first = torch.randint(vocabulary, (examples, 1), generator=generator)
        self.tokens = (first + 3 * torch.arange(length + 1)) % vocabulary
        self.questions = torch.randint(length // 2, length + 2, (examples,), generator=generator)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        labels = self.tokens[number, 1:].clone()
        labels[: self.questions[number]] = IGNORED
        return self.tokens[number, :-1], labels


class Model(nn.Module):
    """A recurrent language model."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.mixer = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden, _ = self.mixer(self.embedding(tokens))
        scores: Tensor = self.head(hidden)
        return scores


def train_epoch(
    model: nn.Module, loader: DataLoader[tuple[Tensor, Tensor]], optimizer: torch.optim.Optimizer, device: torch.device
) -> None:
    for step, (tokens, labels) in enumerate(loader):
        tokens, labels = tokens.to(device), labels.to(device)
        if (labels == IGNORED).all():
            continue  # no answer in this batch: the mean over its labels would be 0 / 0
        scores = model(tokens)
        loss = cross_entropy(scores.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 4 == 0 and dist.get_rank() == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=2)
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--save", default="model.pt")
    args = parser.parse_args()

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    torch.manual_seed(0)

    dataset = Answers(examples=48, length=12, vocabulary=32)
    sampler: DistributedSampler[tuple[Tensor, Tensor]] = DistributedSampler(dataset)
    loader = DataLoader(dataset, args.batch_size, sampler=sampler)
    model = DistributedDataParallel(Model(vocabulary=32, width=64).to(device), device_ids=[device.index])
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        train_epoch(model, loader, optimizer, device)
        if dist.get_rank() == 0:
            torch.save(model.module.state_dict(), args.save)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
