"""`BestAverage`: the weights of the best validation are kept, whatever comes later."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.parallel import DataParallel

from functrain import EMA, BestAverage, Shell, Stage, TrainState, fit, fold, named, on, when
from functrain.hooks.shadow import shadow_of
from functrain.testing import LAWS, Scene
from functrain.testing.drawn_states import states
from tests.scalars import Weight, run, sgd_shell
from tests.scripted import Planned, pair_shell, step_pair

SCORES = st.sampled_from([0.0, 1.0, 2.0, 3.0, math.nan, math.inf, -math.inf])


def best_place(scores: list[float], mode: str) -> int | None:
    """Return where the best score is, by hand: the first of the best, NaN never."""
    there = [place for place, score in enumerate(scores) if not math.isnan(score)]
    sign = -1.0 if mode == "max" else 1.0
    return min(there, key=lambda place: sign * scores[place], default=None)


@given(
    scores=st.lists(SCORES, min_size=1, max_size=8), mode=st.sampled_from(["min", "max"]), of=st.none() | st.just("ema")
)
def test_by_hand_the_best_is_kept(scores: list[float], mode: Any, of: Any) -> None:
    """After each validation: score, step and weights of the best one so far; a NaN never wins, of equals the first."""
    shell = sgd_shell(model := Weight(), [EMA(decay=0.5), BestAverage(metric="m", mode=mode, of=of)])
    averages = []
    for place, score in enumerate(scores):
        run(shell, [-1.0])
        averages.append(shell.averaged_module().w.item())
        shell.validated({"m": score})
        at = best_place(scores[: place + 1], mode)
        if at is None:
            with pytest.raises(RuntimeError, match=r"'best' has kept nothing.*'m'"):
                shell.best()
            continue
        best = shell.best()
        assert (best.score, best.step, best.averaged) == (scores[at], at + 1, of is not None)
        assert best.state_dict()["w"].item() == (averages[at] if of else at + 1.0)
    assert model.w.item() == len(scores)


@given(
    scores=st.lists(SCORES, min_size=1, max_size=5),
    start=st.integers(0, 6),
    kind=st.sampled_from([float, torch.tensor]),
)
def test_fit_keeps_what_it_validated(scores: list[float], start: int, kind: Any) -> None:
    """The weights kept are those that ``validate`` saw with the best score: raw ones before the first update."""
    seen, left = [], iter(scores)

    def validate(model: Any) -> dict[str, Any]:
        seen.append(model.w.item())
        return {"acc": kind(next(left))}

    shell = sgd_shell(Weight(), [EMA(decay=0.5, start_step=start), BestAverage(metric="acc", mode="max")])
    history = fit(shell, [-1.0], lambda m, x: m(x), len(scores), validate=validate, progress=False)
    if (at := best_place(scores, "max")) is None:
        return
    best = shell.best()
    assert (best.state_dict()["w"].item(), best.step, best.epoch) == (seen[at], at + 1, at)
    assert best.averaged == (history.validations[at]["validated_with"] == "ema")


class Tied(nn.Module):
    """Two names for one weight, a buffer that is saved and one that is not."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(3, 3, bias=False, dtype=dtype)
        self.second = nn.Linear(3, 3, bias=False, dtype=dtype)
        self.second.weight = self.first.weight
        self.same = self.first
        self.norm = nn.BatchNorm1d(3, dtype=dtype)
        self.register_buffer("hidden", torch.zeros(()), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return something to train on."""
        return self.norm(self.second(self.first(x)))


def validated(model: nn.Module, *hooks: Any, dtype: torch.dtype = torch.float32) -> Shell:
    """Train three steps, and validate after the second."""
    shell = sgd_shell(model, [EMA(decay=0.5), BestAverage(), *hooks], lr=0.5)
    for place in range(3):
        x = torch.randn(4, 3, generator=torch.Generator().manual_seed(place)).to(dtype)
        with shell.batch():
            shell.update(model(x).float().pow(2).mean() + model(x).float()[0].sum())
        if place == 1:
            shell.validated({"total_loss": 1.0})
    return shell


def same(left: Any, right: Any) -> bool:
    """Tell whether two state dicts have the same names, values and dtypes."""
    return list(left) == list(right) and all(
        torch.equal(value, right[name]) and value.dtype is right[name].dtype for name, value in left.items()
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("wrap", [lambda m: m, DataParallel, lambda m: torch.compile(m, backend="eager")])
def test_it_gives_a_state_dict_and_loads_into_modules(wrap: Any, dtype: torch.dtype) -> None:
    """Plain names, tied ones under each, in the model's dtype: what the average's module had; it loads strictly."""
    shell = validated(wrap(model := Tied(dtype)), dtype=dtype)
    best, now = shell.best(), copy.deepcopy(model.state_dict())
    fresh = Tied(dtype)
    fresh.load_state_dict(best.state_dict(), strict=True)
    assert same(fresh.state_dict(), best.state_dict())
    best.load_into(wrap(other := Tied(dtype)))
    assert same(other.state_dict(), best.state_dict())
    assert same(model.state_dict(), now)
    best.load_into(model)
    assert same(model.state_dict(), best.state_dict())
    assert not same(model.state_dict(), now)


def test_what_is_handed_out_is_a_copy() -> None:
    """Writing into a state dict does not change what is kept."""
    shell = validated(Tied())
    best = shell.best()
    right = copy.deepcopy(best.state_dict())
    for leaf in best.state_dict().values():
        leaf.zero_()
    best.load_into(Tied()).first.weight.data.zero_()
    assert same(best.state_dict(), right)


@pytest.mark.parametrize("saved", ["snapshot", "state_dict"])
def test_it_survives_saving(saved: str) -> None:
    """After going back, or in another process, the best of then is the best; a worse score does not replace it."""
    shell = sgd_shell(Weight(), [EMA(decay=0.5), BestAverage(metric="m", mode="max")])
    run(shell, [-1.0, -1.0])
    shell.validated({"m": 3.0})
    taken = shell.snapshot() if saved == "snapshot" else copy.deepcopy(shell.state_dict())
    run(shell, [-1.0])
    shell.validated({"m": 5.0})
    if saved == "state_dict":
        shell = sgd_shell(Weight(), [EMA(decay=0.5), BestAverage(metric="m", mode="max")])
        shell.load_state_dict(taken)
    else:
        shell.restore(taken)
    for score in (2.0, 3.0, math.nan):
        run(shell, [-1.0])
        shell.validated({"m": score})
        best = shell.best()
        assert (best.score, best.step, best.state_dict()["w"].item()) == (3.0, 2, 1.5)


def test_a_validation_inside_averaged_keeps_the_average() -> None:
    """By hand one may tell the score while the model still holds the average; the raw weights come back."""
    shell = sgd_shell(model := Weight(), [EMA(decay=0.5), BestAverage()])
    run(shell, [-1.0, -1.0])
    with shell.averaged():
        shell.validated({"total_loss": model.w.item()})
    assert (model.w.item(), shell.best().state_dict()["w"].item(), shell.best().score) == (2.0, 1.5, 1.5)


@pytest.mark.parametrize("strict", [True, False])
def test_each_of_several_keeps_its_own(strict: bool) -> None:
    """Two metrics, two averages, two models: each under its own name."""
    hooks = [
        EMA(model_key="a", decay=0.5),
        BestAverage(metric="low", of="ema_a", model_key="a"),
        named("high", BestAverage(metric="high", mode="max", of="ema_a", model_key="a")),
        BestAverage(metric="low", of=None, model_key="b"),
    ]
    shell = pair_shell(hooks, strict=strict)
    for low, high in ((2.0, 1.0), (1.0, 2.0), (3.0, 0.0)):
        step_pair(shell, a=-1.0, b=-1.0)
        shell.validated({"low": low, "high": high})
    assert [shell.best(name).state_dict()["w"].item() for name in ("best_a", "high", "best_b")] == [1.5, 1.5, 2.0]
    with pytest.raises(KeyError, match=r"no BestAverage named 'best'.*'best_a', 'best_b', 'high'"):
        shell.best()


def test_an_average_of_a_selection_is_kept_with_the_raw_rest() -> None:
    """Parameters that the average does not hold are kept raw, as they were validated."""
    model = nn.Sequential(Weight(), Weight())
    shell = sgd_shell(model, [on("0.*", EMA(decay=0.5)), BestAverage()])
    for _ in range(2):
        with shell.batch():
            shell.update(model[0](-1.0) + model[1](-1.0))
    shell.validated({"total_loss": 1.0})
    assert {name: leaf.item() for name, leaf in shell.best().state_dict().items()} == {"0.w": 1.5, "1.w": 2.0}


def test_a_part_may_be_kept() -> None:
    """On a selector, only that part is kept, handed out and loaded."""
    model = nn.Sequential(Weight(), Weight())
    shell = sgd_shell(model, [EMA(decay=0.5), on("0.*", BestAverage())])
    for _ in range(2):
        with shell.batch():
            shell.update(model[0](-1.0) + model[1](-1.0))
    shell.validated({"total_loss": 1.0})
    assert list(shell.best().state_dict()) == ["0.w"]
    assert [part.w.item() for part in shell.best().load_into(model)] == [1.5, 2.0]


def test_it_may_wait() -> None:
    """In ``when`` it judges only the validations that the predicate takes."""
    late = when(lambda state: state.clock.step >= 2, BestAverage())
    shell = sgd_shell(Weight(), [EMA(decay=0.5), late])
    for score in (1.0, 3.0, 4.0):
        run(shell, [-1.0])
        shell.validated({"total_loss": score})
    assert (shell.best().score, shell.best().step) == (3.0, 2)


BAD: list[tuple[Any, type[Exception], str]] = [
    ([BestAverage()], KeyError, r"could not find of='ema'; this pipeline keeps the averages \[\]"),
    ([EMA(name="slow"), BestAverage()], KeyError, r"averages \['slow'\]"),
    ([EMA(), BestAverage(model_key="other")], KeyError, r"'best_other' could not find model_key='other'.*'main'"),
]


@pytest.mark.parametrize(("hooks", "error", "words"), BAD)
def test_an_average_that_there_is_not_is_refused_at_once(hooks: Any, error: type[Exception], words: str) -> None:
    """The shell cannot be made; the error lists what there is."""
    with pytest.raises(error, match=words):
        sgd_shell(Weight(), hooks)


@pytest.mark.parametrize(
    ("other", "odd"), [(nn.Linear(1, 1), r"\['bias', 'weight'\]"), (Weight([1.0, 2.0]), r"\['w'\]")]
)
def test_an_average_of_another_model_is_refused_at_once(other: nn.Module, odd: str) -> None:
    """Other names or other shapes tell that ``model_key`` is not that of the average."""
    models = {"main": Weight(), "other": other}
    leaves = [leaf for each in models.values() for leaf in each.parameters()]
    with pytest.raises(
        ValueError, match=r"'ema_other' is no average of model 'main' \(see " + odd + r"\); give model_key="
    ):
        Shell(models, torch.optim.SGD(leaves), [EMA(model_key="other"), BestAverage(of="ema_other")])


def test_a_metric_that_is_not_there_lists_those_that_are() -> None:
    """A misspelt metric is an error at the first validation; what was kept stays."""
    shell = sgd_shell(Weight(), [EMA(), BestAverage(metric="acc")])
    run(shell, [-1.0])
    with pytest.raises(KeyError, match=r"metric='acc'; the validation summary has \['accuracy', 'loss'\]"):
        shell.validated({"loss": 1.0, "accuracy": 1.0})
    with pytest.raises(RuntimeError, match="has kept nothing"):
        shell.best()


def test_a_module_that_does_not_fit_is_refused_before_anything_is_written() -> None:
    """The error has names and shapes; the module keeps what it has."""
    shell = sgd_shell(nn.Sequential(Weight(), Weight([1.0, 2.0])), [EMA(), BestAverage(of=None)])
    shell.validated({"total_loss": 1.0})
    with pytest.raises(ValueError, match=r"do not fit Sequential: it has \[\(\)\] for \['1.w'\], which are \[\(2,\)\]"):
        shell.best().load_into(other := nn.Sequential(Weight(7.0), Weight()))
    assert other[0].w.item() == 7.0


def test_half_of_the_weights_is_never_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error while weights are being copied leaves the best of before, score and weights together."""
    shell = sgd_shell(nn.Sequential(Weight(), Weight(1.0)), BestAverage(of=None))
    shell.validated({"total_loss": 2.0})
    calls, real = iter([False, True]), Tensor.detach

    def failing(leaf: Tensor) -> Tensor:
        if next(calls, False):
            raise Planned
        return real(leaf)

    monkeypatch.setattr(Tensor, "detach", failing)
    with pytest.raises(Planned):
        shell.validated({"total_loss": 1.0})
    monkeypatch.undo()
    assert (shell.best().score, [leaf.item() for leaf in shell.best().state_dict().values()]) == (2.0, [0.0, 1.0])


@pytest.mark.parametrize("law", [law for law in LAWS if law.cost < 4 and ": " not in law.name], ids=str)
@given(data=st.data())
def test_the_laws_hold_of_an_average(law: Any, data: st.DataObject) -> None:
    """Beside an average that has or has not been updated, in both forms of numbers, every cheap law holds."""
    best = BestAverage(
        mode=data.draw(st.sampled_from(["min", "max"])), keep_on=data.draw(st.sampled_from(["cpu", "model"]))
    )
    pipeline = fold(EMA(decay=0.5), best)
    state: TrainState = data.draw(states(pipeline))
    stage = data.draw(st.sampled_from([Stage.SETUP, Stage.AFTER_VALIDATION, Stage.AFTER_OPTIMIZER_STEP]))
    form = data.draw(st.sampled_from(["python", "tensor"]))
    law.check(Scene(pipeline, state, stage, will_skip=False, form=form))


def test_it_is_kept_on_the_cpu_in_float32_over_bfloat16() -> None:
    """What is kept is as exact as the average, and does not share its storage."""
    shell = validated(Tied(torch.bfloat16), dtype=torch.bfloat16)
    kept, shadow = shell.state.hooks["best"]["weights"], shell.state.hooks["ema"]["shadow"]
    assert (
        {leaf.dtype for leaf in kept.values()} == {leaf.dtype for leaf in shadow_of(shadow).values()} == {torch.float32}
    )
    assert not {leaf.data_ptr() for leaf in kept.values()} & {leaf.data_ptr() for leaf in shadow.values()}


@pytest.mark.parametrize("stage", [Stage.SETUP, Stage.AFTER_VALIDATION])
@pytest.mark.parametrize("summary", [{}, {"total_loss": 1.0}], ids=["not validated", "validated"])
def test_it_vetoes_nothing(stage: Stage, summary: dict[str, float]) -> None:
    """The verdict is True wherever it is asked for, so that ``on`` may move it to a stage that counts."""
    state = sgd_shell(Weight(), [EMA(), hook := BestAverage()]).state.replace(validation=summary)
    assert hook(state, stage, will_skip=False).proceed is True
