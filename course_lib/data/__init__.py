"""Images, a text and a model that the lessons train on. README.md in this folder has sources and licences."""

from importlib.resources import as_file, files

import numpy as np
import torch

from .tiny_gpt import Block, TinyGPT, batch, text

__all__ = ["Block", "TinyGPT", "batch", "digits", "text"]


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """Return handwritten digits: images [1797, 1, 8, 8], float32 from 0 to 1, and labels [1797], int64 from 0 to 9.

    They are on the default device, which is the rank's own in a world of GPUs.

    Source: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning Repository
    (1998), doi:10.24432/C50P49, CC BY 4.0.
    """
    with as_file(files(__name__) / "digits.npz") as path, np.load(path) as archive:
        images, labels = torch.tensor(archive["images"]), torch.tensor(archive["labels"])
    return images[:, None].float() / 16, labels.long()
