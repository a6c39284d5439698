import torch

from functrain.demo.network import network


def test_ten_scores_per_image() -> None:
    """The network maps images of 8x8 to scores of ten classes."""
    assert network()(torch.rand(3, 1, 8, 8)).shape == (3, 10)


def test_it_has_buffers() -> None:
    """BatchNorm gives it float statistics and integer counters, so that averaging has both to treat."""
    kinds = {buffer.dtype for buffer in network().buffers()}
    assert kinds == {torch.float32, torch.int64}


def test_one_nan_spoils_a_training_batch() -> None:
    """BatchNorm spreads a single NaN over every image: such a batch must not touch the weights."""
    images = torch.rand(3, 1, 8, 8)
    images[0, 0, 0, 0] = float("nan")
    assert network()(images).isnan().all()
