"""What the comparison with others measures does the same in every hand; nothing here is timed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.benchmarks import __main__ as command
from tests.benchmarks import averages, parts, trace, whole_updates
from tests.benchmarks.networks import Many, perceptron

X = torch.ones(4, 64)


def after(contender: Any, updates: int = 5) -> tuple[list[Tensor], list[Tensor]]:
    """Return weights and average after one block."""
    assert len(contender.block(updates)) == updates
    return list(contender.weights()), list(contender.average())


@pytest.fixture(scope="module")
def by_hand() -> tuple[list[Tensor], list[Tensor]]:
    """What the loop with torch's own averaged model comes to."""
    return after(whole_updates.loop_with_averaged_model(perceptron(8, 2), X))


@pytest.mark.parametrize("build", whole_updates.HERE.values(), ids=list(whole_updates.HERE))
def test_every_hand_comes_to_the_same_weights_and_average(build: whole_updates.Builder, by_hand: Any) -> None:
    """After a block, the weights have moved, and they and their average are bitwise those of the loop."""
    model = perceptron(8, 2)
    weights, average = after(build(model, X))
    assert not torch.equal(weights[0], perceptron(8, 2)[0].weight)
    assert not torch.equal(weights[0], average[0])
    for found, expected in zip((weights, average), by_hand, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("build", whole_updates.HERE.values(), ids=list(whole_updates.HERE))
def test_every_hand_skips_what_is_not_finite(build: whole_updates.Builder) -> None:
    """A batch with a NaN moves no weight."""
    model = perceptron(8, 2)
    build(model, torch.full_like(X, torch.nan)).block(1)
    torch.testing.assert_close(list(model.parameters()), list(perceptron(8, 2).parameters()), rtol=0, atol=0)


def followed(build: Any, dtype: torch.dtype) -> list[Tensor]:
    """Return the average of weights that grow between updates."""
    model = Many(3, 5, dtype)
    contender = build(model)
    for _ in range(4):
        contender.block(1)
        with torch.no_grad():
            for part in model.parts:
                part.add_(1.0)
    return list(contender.average())


BITWISE = (averages.functrain_hook, averages.averaged_model)


@pytest.mark.parametrize("build", averages.HERE.values(), ids=list(averages.HERE))
def test_every_average_is_that_of_the_raw_kernel(build: Any) -> None:
    """The hook and torch's foreach average are bitwise the raw kernel's, those per tensor within rounding."""
    close = {"rtol": 0, "atol": 0} if build in BITWISE else {"rtol": 1e-5, "atol": 1e-6}
    torch.testing.assert_close(followed(build, torch.float32), followed(averages.raw, torch.float32), **close)


@pytest.mark.parametrize("build", averages.HERE.values(), ids=list(averages.HERE))
def test_the_shadow_of_bf16_weights_is_float32(build: Any) -> None:
    """Beside bf16 weights every average is float32 and that of the raw kernel, or its contender says that it cannot."""
    if build is averages.averaged_model:
        with pytest.raises(NotImplementedError, match="one dtype"):
            build(Many(3, 5, torch.bfloat16))
        return
    found, expected = followed(build, torch.bfloat16), followed(averages.raw, torch.bfloat16)
    close = {"rtol": 0, "atol": 0} if build is averages.functrain_hook else {"rtol": 1e-3, "atol": 1e-4}
    torch.testing.assert_close(found, expected, **close)


def broken(*_: Any) -> Any:
    """Build a contender of a package that is not there."""
    raise ModuleNotFoundError("No module named 'elsewhere'")


@pytest.mark.parametrize("name", parts.PARTS)
def test_the_command_prints_and_writes_what_it_found(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each part leaves numbers, ratios and a picture; a contender that does not import is a row with the reason."""
    here = averages.HERE if name == "averages" else whole_updates.HERE
    models = (parts.Model("small", lambda: perceptron(8, 2), 2, lambda: X),)
    small = parts.PARTS[name]._replace(models=models, contenders={**here, "elsewhere": broken})
    monkeypatch.setitem(parts.PARTS, name, small)
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--out", str(tmp_path), "--rounds", "1", "--only", name])
    command.main()
    *rows, last = json.loads((tmp_path / "results.json").read_text())["parts"][name]["small"]
    assert [row["contender"] for row in rows] == list(here)
    assert all(row["ms"] >= row["ms_p10"] > 0 for row in rows)
    assert {row["of_raw"] for row in rows if "raw" in row["contender"]} == {1.0}
    assert last == {"contender": "elsewhere", "missing": "not installed: No module named 'elsewhere'"}
    assert "not installed" in capsys.readouterr().out
    assert (tmp_path / f"{name}.png").stat().st_size > 1000


@pytest.mark.parametrize(("dtype", "above"), [(torch.float32, 0.0), (torch.bfloat16, 4.0)])
def test_memory_is_counted_above_one_shadow(dtype: torch.dtype, above: float) -> None:
    """The raw kernel takes a shadow and no more; beside bf16 weights it stages four float32 tensors of a MiB."""
    model = parts.Model("four tensors", lambda: Many(4, 2**18, dtype), 1)
    ((_, row),) = parts.sharing_weights(model, {"raw": averages.raw}).values()
    assert row["above_shadow_mib"] == pytest.approx(above, abs=0.1)


def test_memory_that_is_freed_at_once_is_counted() -> None:
    """A loop that makes each new average before it copies it takes two tensors at a time."""
    model = parts.Model("four tensors", lambda: Many(4, 2**18), 1)
    ((_, row),) = parts.sharing_weights(model, {"loop": averages.composer_loop}).values()
    assert 2.0 <= row["above_shadow_mib"] < 4.0


@pytest.mark.parametrize("build", [trace.in_a_shell, trace.as_one_function])
def test_the_cost_of_tracing_is_measured_beside_the_bare_update(build: trace.Builder) -> None:
    """A row for each form, also for one that keeps snapshots, and each form updates."""
    rows = trace.measured(build, rounds=1, size=50_000_000, what="test")
    assert [row["form"] for row in rows] == [trace.TRACED, trace.KEEPING]
    assert all(row["of_bare"] > 0 for row in rows)
