from rich.console import Console
from rich.table import Table

from functrain.demo.report import REASONS, empty_windows, outcome_table, pipeline_table, vetoes
from functrain.demo.trial import Trial


def drawn(table: Table) -> str:
    """Return a table as a terminal of 110 columns shows it."""
    console = Console(width=110, color_system=None)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def test_the_pipeline_is_shown_in_order(trial: Trial) -> None:
    """Hooks appear from accumulation to averaging, each once."""
    text = drawn(pipeline_table(trial.setup.shell.pipeline))
    names = ["Accumulate", "MixedPrecision", "ClipNorm", "SkipNonFinite", "SkipSpikes", "EMA"]
    places = [text.index(name) for name in names]
    assert places == sorted(places)
    assert all(text.count(name) == 1 for name in names)


def test_the_outcome_names_every_veto(trial: Trial) -> None:
    """Each hook that vetoed has a row with its reason and its count."""
    text = drawn(outcome_table(trial))
    counted = vetoes(trial.history)
    assert {"finite@DO_BACKWARD", "spikes@DO_OPTIMIZER_STEP"} <= counted.keys()
    assert counted.keys() <= REASONS.keys()
    for veto in counted:
        assert f"{veto.split('@')[0]}: {REASONS[veto]}" in text


def test_every_skip_is_explained(trial: Trial) -> None:
    """Each skipped step was vetoed by a hook, or its window was left empty: here one of each kind."""
    vetoed = vetoes(trial.history)["spikes@DO_OPTIMIZER_STEP"]
    assert (vetoed, empty_windows(trial.history)) == (1, 1)
    assert trial.clock.skipped == vetoed + empty_windows(trial.history)


def test_the_outcome_holds_the_numbers(trial: Trial) -> None:
    """Accuracies, batches, steps and time are there."""
    text = drawn(outcome_table(trial))
    assert f"{trial.raw:.2%}" in text
    assert f"{trial.averaged:.2%}" in text
    assert str(trial.clock.step) in text
    assert "ms per step" in text
