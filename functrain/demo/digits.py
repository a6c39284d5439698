"""The 1,797 handwritten digits that scikit-learn ships, a fifth of them held out."""

# scikit-learn is neither annotated nor stubbed: what it returns is Any, until it is made into tensors here.
# pyright: reportMissingTypeStubs=false, reportUnknownVariableType=false

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import torch
from sklearn import datasets, model_selection
from torch import Tensor
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from functrain.demo.ranks import Place

Batch: TypeAlias = tuple[Tensor, Tensor]

BATCH_SIZE = 32
BRIGHTEST = 16.0
ALONE = Place()


class Digits(NamedTuple):
    """Images of shape (n, 1, 8, 8) between 0 and 1 and their labels: to train on, and held out."""

    train: Batch
    held_out: Batch


def load_digits(seed: int, device: str = "cpu") -> Digits:
    """Split the digits by a seed, with every class in the same proportion on both sides.

    >>> digits = load_digits(seed=0)
    >>> digits.train[0].shape, len(digits.held_out[1])
    (torch.Size([1437, 1, 8, 8]), 360)
    """
    bunch: Any = datasets.load_digits()
    split: Any = model_selection.train_test_split(
        bunch.images, bunch.target, test_size=0.2, stratify=bunch.target, random_state=seed
    )
    train_images, test_images, train_labels, test_labels = split
    return Digits(_batch(train_images, train_labels, device), _batch(test_images, test_labels, device))


def _batch(images: Any, labels: Any, device: str) -> Batch:
    """Turn arrays into tensors on a device."""
    scaled = torch.as_tensor(images, dtype=torch.float32, device=device).unsqueeze(1) / BRIGHTEST
    return scaled, torch.as_tensor(labels, dtype=torch.int64, device=device)


def shuffled(examples: Batch, seed: int, place: Place = ALONE) -> DataLoader[tuple[Tensor, ...]]:
    """Return a loader that deals all examples anew in each epoch, in an order that only the seed decides.

    Of several processes each is dealt its own part of every batch.
    """
    if place.world > 1:
        dataset, size = TensorDataset(*examples), max(1, BATCH_SIZE // place.world)
        own = DistributedSampler(dataset, place.world, place.rank, seed=seed)
        return DataLoader(dataset, batch_size=size, sampler=own)
    order = torch.Generator().manual_seed(seed)
    return DataLoader(TensorDataset(*examples), batch_size=BATCH_SIZE, shuffle=True, generator=order)
