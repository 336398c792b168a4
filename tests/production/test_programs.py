"""`finetune.py`, a program with a fault that lesson 11 finds and repairs."""

import shutil
from pathlib import Path

import pytest
import torch

from course_lib import RankError, World, production

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has GPUs")

MESSAGE = """\
the ranks call different collectives at the same point: rank 0: all_reduce #12; rank 1: barrier #1
  rank 0 called all_reduce #12 at finetune.py line 59, in train_epoch:  loss.backward(), called from finetune.py \
line 85, in main:  train_epoch(model, loader, optimizer, device)
  rank 1 called barrier #1 at finetune.py line 88, in main:  dist.barrier()
  calls of all_reduce at finetune.py line 59 until then: rank 0: 12; rank 1: 11
Next: let every rank make the same calls, in the same order: look for an `if`, a `continue`, a `return` or an `except` \
that only some ranks meet, or for a loop that is longer on some ranks. backward calls collectives.
"""


@pytest.mark.slow
def test_a_batch_that_one_rank_skips_is_found_as_the_first_pages_show(tmp_path: Path) -> None:
    program = shutil.copy(Path(production.__file__).parent / "finetune.py", tmp_path)
    with pytest.raises(RankError) as caught:
        World(2, gpus=True).run_file(program, "--save", str(tmp_path / "model.pt"))
    assert f"{caught.value}\n" == MESSAGE
    printed = "".join(f"[rank 0] {line}\n" for line in caught.value.output[0].splitlines())
    for page in ("README.md", "docs/index.md"):
        assert f"```\n{printed}{MESSAGE}```\n" in (Path(__file__).parents[2] / page).read_text()
