import torch

from functrain.demo.digits import load_digits, shuffled


def test_a_fifth_is_held_out() -> None:
    """The 1,797 digits are split into 1,437 and 360."""
    train, held_out = load_digits(seed=0)
    assert (len(train[1]), len(held_out[1])) == (1437, 360)


def test_every_class_is_held_out_in_proportion() -> None:
    """Each of the ten digits has 35 to 37 examples among the held-out 360."""
    counts = load_digits(seed=3).held_out[1].bincount()
    assert len(counts) == 10
    assert 35 <= counts.min() <= counts.max() <= 37


def test_images_lie_between_0_and_1() -> None:
    """Pixels are scaled, single precision and of one channel."""
    images, _ = load_digits(seed=0).train
    assert images.shape[1:] == (1, 8, 8)
    assert images.dtype is torch.float32
    assert (images.min(), images.max()) == (0, 1)


def test_the_seed_decides_the_split() -> None:
    """Equal seeds split equally, others do not."""
    first, again, other = (load_digits(seed=seed).held_out[0] for seed in (0, 0, 1))
    assert first.equal(again)
    assert not first.equal(other)


def test_the_seed_decides_the_order() -> None:
    """Two loaders of one seed deal the same batches, epoch after epoch, and no two epochs the same."""
    train = load_digits(seed=0).train
    one, two = shuffled(train, seed=5), shuffled(train, seed=5)
    epochs = [[labels for _, labels in loader] for loader in (one, two, one, two)]
    assert all(a.equal(b) for a, b in zip(epochs[0], epochs[1], strict=True))
    assert all(a.equal(b) for a, b in zip(epochs[2], epochs[3], strict=True))
    assert not torch.cat(epochs[0]).equal(torch.cat(epochs[2]))


def test_the_shuffle_leaves_the_global_generator_alone() -> None:
    """The order of the images does not depend on, nor disturb, what a model draws."""
    loader = shuffled(load_digits(seed=0).train, seed=5)
    before = torch.get_rng_state()
    _ = list(loader)
    assert torch.get_rng_state().equal(before)
