"""What the demo shows: the pipeline before, and the outcome after the run."""

from __future__ import annotations

from collections import Counter

from rich.markup import escape
from rich.table import Table

import functrain
from functrain.demo.trial import Trial

REASONS = {
    "finite@DO_BACKWARD": "micro-batch dropped, its loss is not finite",
    "finite@DO_OPTIMIZER_STEP": "step vetoed, a gradient is not finite",
    "spikes@DO_BACKWARD": "micro-batch dropped, its loss is a spike",
    "spikes@DO_OPTIMIZER_STEP": "step vetoed, the loss is a spike",
    "precision@DO_OPTIMIZER_STEP": "step vetoed, the scaled gradients overflowed",
}


def pipeline_table(pipeline: functrain.Pipeline) -> Table:
    """Return the hooks in the order in which they run, each with the stages that it claims."""
    stages = [stage for stage in functrain.Stage if pipeline.claimants(stage)]
    table = Table(title="The pipeline, in the order in which the hooks run")
    table.add_column("", justify="right")
    table.add_column("hook")
    for stage in stages:
        table.add_column(stage.name.lower().replace("_", "\n"), justify="center")
    for hook in pipeline:
        claims = ("x" if stage in hook.stages else "" for stage in stages)
        table.add_row(str(hook.priority), configuration(hook), *claims)
    return table


def configuration(hook: functrain.Hook) -> str:
    r"""Return what a hook is, and below it what was set, as markup.

    >>> configuration(functrain.ClipNorm(max_norm=1.0))
    'ClipNorm\n[dim]max_norm=1.0[/dim]'
    """
    kind, _, settings = repr(hook).removesuffix(")").partition("(")
    return f"{kind}\n[dim]{escape(settings)}[/dim]" if settings else kind


def outcome_table(trial: Trial) -> Table:
    """Return what came out of a run, skips by hook and reason among it."""
    clock = trial.clock
    table = Table(title="The outcome, on the held-out fifth")
    table.add_column("")
    table.add_column("", justify="right")
    table.add_row("accuracy, raw weights", f"{trial.raw:.2%}")
    table.add_row("accuracy, averaged weights", f"[bold]{trial.averaged:.2%}[/bold]")
    table.add_row("batches", str(clock.batch))
    table.add_row("batches poisoned on purpose", str(len(trial.setup.batches.plan)))
    table.add_row("optimizer steps", str(clock.step))
    table.add_row("steps skipped", str(clock.skipped), end_section=True)
    for veto, count in vetoes(trial.history).items():
        hook, _ = veto.split("@")
        table.add_row(f"{hook}: {REASONS.get(veto, veto)}", str(count))
    if empty := empty_windows(trial.history):
        table.add_row("no step, all micro-batches of the window were dropped", str(empty))
    table.add_section()
    table.add_row("ms per step", f"{trial.milliseconds_per_step:.1f}")
    return table


def vetoes(history: functrain.History) -> Counter[str]:
    """Count the vetoes of a run by hook and stage, as ``hook@STAGE``."""
    return Counter(veto for record in history.records for veto in record["skipped_by"])


def empty_windows(history: functrain.History) -> int:
    """Count the skips that no hook vetoed at the step: nothing had entered the window.

    >>> vetoed = {"skipped": 1, "skipped_by": ("spikes@DO_OPTIMIZER_STEP",)}
    >>> empty_windows(functrain.History([vetoed, {"skipped": 2, "skipped_by": ("finite@DO_BACKWARD",)}]))
    1
    """
    counts = [0, *(record["skipped"] for record in history.records)]
    return sum(
        now > before and not any(veto.endswith("@DO_OPTIMIZER_STEP") for veto in record["skipped_by"])
        for before, now, record in zip(counts, counts[1:], history.records, strict=False)
    )
