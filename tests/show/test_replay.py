"""Replays: with the same hooks the recorded run, bitwise; with others what they alone change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from functrain import (
    EMA,
    Accumulate,
    ClipNorm,
    FixedLimit,
    MixedPrecision,
    Pipeline,
    Shell,
    SkipNonFinite,
    SkipSpikes,
    every,
    fit,
    fold,
    pure,
    show,
)
from functrain._strict import same
from functrain._tree import paths
from tests.scalars import Weight, sgd_shell
from tests.shell.pipelines import FACTORS, network, optimizers, pipelines, runs, shell_of
from tests.show.reading import parsed

BUDGET = 100_000_000


def assert_same(one: Any, other: Any) -> None:
    """Every leaf of the two is bitwise the same."""
    ours, theirs = paths(one), paths(other)
    assert ours.keys() == theirs.keys()
    assert not [path for path in ours if not same(ours[path], theirs[path])]


def batch_of(kind: str, place: int) -> dict[str, Tensor]:
    """Return a micro-batch in which the event of a kind happens."""
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(place))
    return {"x": x, "factor": torch.tensor(FACTORS.get(kind, 1.0))}


def loss_fn(model: Any, batch: Any) -> Tensor:
    """Return a loss of real modules."""
    return model(batch["x"]).float().square().mean() * batch["factor"]


def train(shell: Shell, kinds: Sequence[str]) -> None:
    """Run micro-batches, some without an update, and flushes."""
    model = shell._driver.applier.models.modules["main"]
    for place, kind in enumerate(kinds):
        if kind == "flush":
            shell.flush()
            continue
        batch = batch_of(kind, place)
        with shell.batch(batch, last=kind == "spike"):
            loss = loss_fn(model, batch)
            if kind != "left":
                shell.update(loss)


def assert_agree(recorded: Any, replay: show.Replay, hooks: Any) -> None:
    """Every snapshot of the replay is that of the recorded run, and both views say that nothing differs."""
    batches = replay.trace.kept_batches()
    assert batches == [each["batch"] for each in replay.to_records()]
    for batch in batches:
        ours, theirs = recorded[batch].snapshot, hooks.trace[batch].snapshot
        assert_same(ours.state, theirs.state)
        assert_same(ours.optimizers, theirs.optimizers)
        assert_same(ours.schedulers, theirs.schedulers)
    assert "the two agree in all" in str(replay)
    assert all(each["distance"] == 0.0 for each in replay.to_records())


@given(
    pipeline=pipelines(),
    kinds=runs,
    optimizer=optimizers,
    strict=st.sampled_from([False] * 9 + [True]),
    data=st.data(),
)
def test_a_shell_replayed_with_its_own_hooks_is_the_recorded_run(
    pipeline: Pipeline, kinds: list[str], optimizer: str, strict: bool, data: st.DataObject
) -> None:
    """Bitwise, from any kept micro-batch, in a shell of other weights; nobody's random numbers are touched."""
    traced, again = show.trace(pipeline, budget=BUDGET), show.trace(pipeline, budget=BUDGET)
    shell = shell_of(traced, optimizer, strict=strict)
    train(shell, kinds)
    kept = traced.trace.kept_batches()
    if not kept:
        return
    start = data.draw(st.none() | st.sampled_from(kept))
    random = torch.get_rng_state()
    replay = show.replay(
        traced.trace, again, lambda hooks: shell_of(hooks, optimizer, seed=1, strict=strict), loss_fn, start=start
    )
    assert torch.equal(random, torch.get_rng_state())
    assert_agree(traced.trace, replay, again)
    assert_same(shell.state, replay.state)


PURE: dict[str, Callable[[], Any]] = {
    "sgd": lambda: pure.sgd(0.1),
    "momentum": lambda: pure.sgd(0.1, momentum=0.9),
    "adamw": lambda: pure.adamw(0.1),
}


@given(pipeline=pipelines(), kinds=runs, optimizer=st.sampled_from(sorted(PURE)), donated=st.booleans(), data=st.data())
def test_a_pure_run_replayed_with_its_own_hooks_is_the_recorded_run(
    pipeline: Pipeline, kinds: list[str], optimizer: str, donated: bool, data: st.DataObject
) -> None:
    """Bitwise, from any kept micro-batch, also if the recorded run wrote over its states."""
    functional = pure.functional(network(0), loss_fn=loss_fn)

    def make(hooks: Any) -> Any:
        return pure.train_step(functional, PURE[optimizer](), hooks)

    traced, again = show.trace(pipeline, budget=BUDGET), show.trace(pipeline, budget=BUDGET)
    init, step, flush = make(traced)
    model = network(0)
    state = init(pure.parameters(model), pure.buffers(model), seed=3).replace(donated=donated)
    for place, kind in enumerate(kinds):
        state = flush(state) if kind == "flush" else step(state, batch_of(kind, place))
    if not (kept := traced.trace.kept_batches()):
        return
    replay = show.replay(traced.trace, again, make, start=data.draw(st.none() | st.sampled_from(kept)))
    assert_agree(traced.trace, replay, again)
    assert_same(state.replace(donated=False), replay.state)


def make_scalar(hooks: Any) -> Shell:
    """Return a shell of one weight."""
    return sgd_shell(Weight(1.0), hooks, lr=0.1)


def scalar_loss(model: Any, slope: Any) -> Tensor:
    """Return a loss whose gradient is the slope."""
    return model(slope)


def recorded_scalar(hooks: Any, slopes: Sequence[float], budget: int = BUDGET) -> Any:
    """Return the trace of a run of one weight."""
    traced = show.trace(hooks, budget=budget)
    shell = make_scalar(traced)
    for slope in slopes:
        with shell.batch(torch.tensor(slope)):
            shell.update(shell._driver.applier.models.modules["main"](torch.tensor(slope)))
    return traced.trace


def test_other_hooks_change_what_they_change() -> None:
    """A spike that was stepped on is skipped in the replay: verdicts, losses and the distance of the weights say so."""
    replay = show.replay(
        recorded_scalar(ClipNorm(max_norm=10.0), [1.0, 1.0, 8.0, 1.0]),
        [ClipNorm(max_norm=10.0), SkipSpikes(by=FixedLimit(limit=5.0))],
        make_scalar,
        scalar_loss,
    )
    records = replay.to_records()
    assert [each["recorded"] for each in records] == ["stepped"] * 4
    assert [each["replayed"] for each in records] == ["stepped", "stepped", "skipped", "stepped"]
    assert [each["distance"] for each in records] == pytest.approx([0.0, 0.0, 0.0, 0.8], abs=1e-6)
    assert records[3]["replayed_loss"] == pytest.approx(0.8)
    assert "the two part in batch 2; the largest distance is 0.8" in str(replay)
    assert replay.trace.why_skipped(2).startswith("batch 2 made no step: 'spikes' vetoed")
    page = parsed(replay._repr_html_())
    assert page.tags.count("table") == 3
    assert all(word in page.words for word in ("recorded", "replayed", "skipped", "the two part in batch 2"))


def test_equal_hooks_keep_their_slots_and_others_start_anew() -> None:
    """An average of the same decay goes on; one of another decay begins at the weights of the snapshot."""
    recorded = recorded_scalar([EMA(decay=0.5)], [1.0, 1.0, 1.0])
    begun = recorded[2].state.hooks["ema"]
    for decay, goes_on in ((0.5, True), (0.9, False)):
        traced = show.trace(EMA(decay=decay), budget=BUDGET)
        show.replay(recorded, traced, make_scalar, scalar_loss, start=2)
        slot = traced.trace[2].state.hooks["ema"]
        assert (slot["num_updates"] == begun["num_updates"]) is goes_on


def test_an_open_window_is_emptied_if_accumulation_changes() -> None:
    """Its gradients are sums that the other window knows nothing of; with the same one they stay."""
    recorded = recorded_scalar([Accumulate(every=3)], [1.0, 2.0, 3.0])
    same_hooks = show.replay(recorded, [Accumulate(every=3)], make_scalar, scalar_loss, start=1)
    other = show.replay(recorded, [Accumulate(every=2)], make_scalar, scalar_loss, start=1)
    assert same_hooks.state.params["main"]["w"].item() == pytest.approx(1.0 - 0.1 * 2.0)
    assert other.state.params["main"]["w"].item() == pytest.approx(1.0 - 0.1 * 2.5)
    precise = show.replay(
        recorded, [Accumulate(every=3), MixedPrecision(precision="float16")], make_scalar, scalar_loss
    )
    assert precise.state.params["main"]["w"].item() == pytest.approx(1.0 - 0.1 * 2.0)


@pytest.mark.parametrize("hooks", [[], [MixedPrecision(precision="float16", init_scale=4.0)]])
def test_weights_of_micro_batches_are_given_again(hooks: list[Any]) -> None:
    """Those that ``update`` was given; in fp16 in the unit that they were given in."""
    pipeline = fold(Accumulate(every=2), *hooks)
    traced = show.trace(pipeline, budget=BUDGET)
    shell = make_scalar(traced)
    for slope, weight in ((1.0, 1000.0), (2.0, 3000.0), (4.0, 1.0), (8.0, 7.0)):
        with shell.batch(torch.tensor(slope)):
            shell.update(shell._driver.applier.models.modules["main"](torch.tensor(slope)), weight=weight)
    again = show.trace(pipeline, budget=BUDGET)
    replay = show.replay(traced.trace, again, make_scalar, scalar_loss)
    assert_agree(traced.trace, replay, again)
    assert_same(shell.state, replay.state)


def test_a_run_that_went_back_is_replayed_from_there_on() -> None:
    """What happened before it is no part of the run any more."""
    traced = show.trace([EMA(decay=0.5)], budget=BUDGET)
    shell = make_scalar(traced)
    model = shell._driver.applier.models.modules["main"]

    def go(*slopes: float) -> None:
        for slope in slopes:
            with shell.batch(torch.tensor(slope)):
                shell.update(model(torch.tensor(slope)))

    go(1.0, 2.0, 3.0)
    shell.restore(traced.trace[1].snapshot)
    with pytest.raises(ZeroDivisionError), shell.batch(torch.tensor(0.0)):
        _ = 1 / 0
    go(5.0, 6.0)
    replay = show.replay(traced.trace, [EMA(decay=0.5)], make_scalar, scalar_loss)
    assert [each["batch"] for each in replay.to_records()] == [1, 2]
    assert_same(shell.state, replay.state)
    assert traced.trace[1].verdict == "stepped"


def test_a_skip_limit_is_noted_and_the_replay_goes_on() -> None:
    """The recorded run had no such limit."""
    recorded = recorded_scalar([], [8.0] * 4)
    hooks = SkipSpikes(by=FixedLimit(limit=0.5), max_consecutive=1)
    replay = show.replay(recorded, hooks, make_scalar, scalar_loss)
    assert len(replay.to_records()) == 4
    assert replay.limits
    assert "! in the replay: " in str(replay)


def test_fit_is_replayed_across_epochs() -> None:
    """Windows are flushed where epochs ended, with the last batch known as the last."""
    data = list(torch.randn(5, 4, 3, generator=torch.Generator().manual_seed(0)))
    hooks = fold(Accumulate(every=2), SkipNonFinite(), EMA(decay=0.5))

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return model(x).square().mean()

    traced, again = show.trace(hooks, budget=BUDGET), show.trace(hooks, budget=BUDGET)
    shell = shell_of(traced, "adamw")
    fit(shell, data, loss, epochs=3, progress=False)
    replay = show.replay(traced.trace, again, lambda hooks: shell_of(hooks, "adamw", seed=1), loss, start=3)
    assert_agree(traced.trace, replay, again)
    assert_same(shell.state.params, replay.state.params)
    assert replay.state.clock.epoch == 3


def test_a_long_replay_prints_in_a_screenful() -> None:
    """The first, the last, and those that came out otherwise."""
    slopes = [1e-3] * 200
    slopes[100] = 8.0
    replay = show.replay(recorded_scalar([], slopes), SkipSpikes(by=FixedLimit(limit=5.0)), make_scalar, scalar_loss)
    assert len(str(replay).splitlines()) < 45
    rows = [line.split()[0] for line in str(replay).split("batch by batch\n")[1].splitlines()[2:-1]]
    assert rows == ["0", "1", "2", "3", "...", "100", "...", "196", "197", "198", "199"]


def other_model(hooks: Any) -> Shell:
    """Return a shell of two weights."""
    return sgd_shell(Weight([1.0, 2.0]), hooks)


def other_keys(hooks: Any) -> Shell:
    """Return a shell whose optimizer has a name."""
    model = Weight(1.0)
    return Shell(model, {"own": torch.optim.SGD(model.parameters(), lr=0.1)}, hooks)


def a_pure_step(hooks: Any) -> Any:
    """Return the other interpreter."""
    return pure.train_step(lambda params, _buffers, x: params["w"] * x, pure.sgd(0.1), hooks)


@pytest.mark.parametrize(
    ("make", "loss", "error", "told"),
    [
        (other_model, scalar_loss, ValueError, r'another model.*state.params\["main"\]\["w"\] was a tensor \(\)'),
        (other_keys, scalar_loss, ValueError, r"built optimizers \['own'\]; the recorded run had \['main'\]"),
        (a_pure_step, None, TypeError, "recorded by a shell, and make"),
        (make_scalar, None, TypeError, r"a shell needs loss_fn\(model, batch\)"),
        (lambda hooks: hooks, None, TypeError, "must return a functrain.Shell or functrain.pure.train_step"),
    ],
)
def test_what_does_not_fit_is_refused(make: Any, loss: Any, error: type[Exception], told: str) -> None:
    """With what it is and what to give instead."""
    with pytest.raises(error, match=told):
        show.replay(recorded_scalar([], [1.0]), [], make, loss)


def test_a_pure_trace_refuses_a_shell_and_another_optimizer() -> None:
    """With what to give instead."""
    traced = show.trace([], budget=BUDGET)
    init, step, _ = a_pure_step(traced)
    step(init({"w": torch.tensor(1.0)}), torch.tensor(1.0))
    with pytest.raises(TypeError, match="recorded by the pure engine, and make"):
        show.replay(traced.trace, [], make_scalar, scalar_loss)

    def adam(hooks: Any) -> Any:
        return pure.train_step(lambda params, _buffers, x: params["w"] * x, pure.adam(0.1), hooks)

    with pytest.raises(ValueError, match="built another optimizer 'main'"):
        show.replay(traced.trace, [], adam)


def test_a_replay_needs_a_snapshot_and_data() -> None:
    """What is missing is said, and what there is."""
    with pytest.raises(LookupError, match="keeps no snapshot to start from"):
        show.replay(recorded_scalar([], [1.0], budget=0), [], make_scalar, scalar_loss)
    with pytest.raises(LookupError, match=r"no snapshot of batch 7 to start from; .* batches 0 to 1"):
        show.replay(recorded_scalar([], [1.0, 1.0]), [], make_scalar, scalar_loss, start=7)
    traced = show.trace([], budget=BUDGET)
    shell = make_scalar(traced)
    with shell.batch():
        shell.update(shell._driver.applier.models.modules["main"](1.0))
    with pytest.raises(ValueError, match="hold no data to run them on again"):
        show.replay(traced.trace, [], make_scalar, scalar_loss)


@pytest.mark.parametrize("other", [torch.optim.Adam, torch.optim.Adagrad])
def test_another_optimizer_of_a_shell_is_refused(other: Any) -> None:
    """By what its parameter groups have, before anything is loaded into it."""

    def make(hooks: Any) -> Shell:
        model = Weight()
        return Shell(model, other(list(model.parameters()), lr=0.1), hooks)

    with pytest.raises(ValueError, match="built another optimizer 'main'"):
        show.replay(recorded_scalar([], [1.0, 1.0]), [], make, scalar_loss)


@pytest.mark.parametrize(
    "join",
    [lambda traced: fold(traced, EMA()), lambda traced: EMA() + traced, lambda traced: every(2, traced)],
    ids=["fold", "+", "every"],
)
def test_a_traced_pipeline_is_no_part_of_another_one(join: Any) -> None:
    """It would record nothing; the whole one is what can be traced, and a traced one alone stays itself."""
    traced = show.trace(ClipNorm(max_norm=1.0))
    with pytest.raises(ValueError, match=r"cannot be part of another one.*show\.trace\(fold"):
        join(traced)
    assert fold(traced) is traced
