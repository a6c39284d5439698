"""A machine that does to a training run whatever may happen to one, and checks the global laws after each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from functrain.testing.contexts import Contexts
from functrain.testing.differences import require_none, unlike
from functrain.testing.events import Event
from functrain.testing.global_laws import guarded, kept_gradients, non_finite_parameters, waits
from functrain.testing.training import Training
from functrain.testing.watched import FAILURES, Watched

PLACES = st.integers(0, 7)


class TrainingMachine(RuleBasedStateMachine):
    """Does to a training run whatever may happen to one; its invariants are the laws that hold of every run.

    Subclass it, or call :func:`functrain.testing.training_machine`. Run it as a test case, ``TestMine =
    MyMachine.TestCase``, or with ``hypothesis.stateful.run_state_machine_as_test(MyMachine)``. A failing run is printed
    as code, from ``state = MyMachine()`` on: to replay it, paste it behind the definition of the machine, as below.

    Attributes:
        training: what is run.
        hooks: a strategy for the hooks of ``training``; None for those that it has.
        beside_pure: run the pure engine beside the shell, and compare them; its optimizers need counterparts there.
        finite: whether parameters have to stay finite; None for: iff a SkipNonFinite is in the pipeline as it is.

    >>> import torch
    >>> from functrain import SkipNonFinite
    >>> class MyMachine(TrainingMachine):
    ...     training = Training(
    ...         model=lambda: torch.nn.Linear(2, 1),
    ...         loss_fn=lambda model, x: model(x).square().mean(),
    ...         optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
    ...         batches=[torch.ones(3, 2)],
    ...     )
    ...     hooks = st.builds(SkipNonFinite, drop=st.booleans())
    >>> state = MyMachine()
    >>> state.begin(hooks=SkipNonFinite(drop=True))
    >>> state.overflow(place=0, kind="nan")
    >>> state.laws_hold()
    >>> state.watched.run.shell.state.clock.skipped
    1
    """

    training: ClassVar[Training]
    hooks: ClassVar[st.SearchStrategy[Any] | None] = None
    beside_pure: ClassVar[bool] = True
    finite: ClassVar[bool | None] = None
    watched: Watched

    def __init_subclass__(cls, **options: Any) -> None:
        """Let drawn hooks be what a run begins with."""
        super().__init_subclass__(**options)
        if cls.hooks is not None:
            cls.begin = initialize(hooks=cls.hooks)(_begin)

    begin: ClassVar[Callable[..., None]]

    def __init__(self) -> None:
        """Start, unless the hooks have to be drawn first."""
        super().__init__()
        self._contexts = Contexts()
        if self.hooks is None:
            self.start(self.training)

    def start(self, training: Training) -> None:
        """Build the run."""
        self._finite = guarded(training.pipeline) if self.finite is None else self.finite
        self.watched = Watched(training, beside_pure=self.beside_pure)

    def teardown(self) -> None:
        """Close what a fault may have left open, so that the next run is not blamed for it."""
        self._contexts.close()

    @rule(place=PLACES)
    def step(self, place: int) -> None:
        """Present micro-batches until a window has closed."""
        self.watched.complete(place)

    @precondition(lambda self: waits(self.watched.run))
    @rule(place=PLACES)
    def accumulate(self, place: int) -> None:
        """Present a micro-batch that closes no window."""
        self.watched.present("fine", place)

    @rule(place=PLACES, kind=st.sampled_from(["inf", "nan"]))
    def overflow(self, place: int, kind: Event) -> None:
        """Present a micro-batch that is not finite."""
        self.watched.present(kind, place)

    @rule(place=PLACES)
    def spike(self, place: int) -> None:
        """Present a micro-batch a thousand times as large."""
        self.watched.present("spike", place)

    @rule(place=PLACES)
    def drop(self, place: int) -> None:
        """Present a micro-batch that a hook vetoes at DO_BACKWARD."""
        self.watched.present("drop", place)

    @rule(place=PLACES)
    def leave(self, place: int) -> None:
        """Leave a micro-batch without an update."""
        self.watched.leave(place)

    @rule()
    def flush(self) -> None:
        """End the epoch."""
        self.watched.flush()

    @rule()
    def save(self) -> None:
        """Keep everything."""
        self.watched.save()

    @rule(by=st.sampled_from(["snapshot", "state_dict"]))
    def restore(self, by: str) -> None:
        """Go back to what was kept last: to the start, if nothing was."""
        self.watched.restore(by)

    @rule(nested=st.booleans(), fails=st.booleans())
    def swap_averages(self, nested: bool, fails: bool) -> None:
        """Let the model hold its averages for a while."""
        self.watched.swap_averages(nested=nested, fails=fails)

    @rule(place=PLACES, where=st.sampled_from(FAILURES))
    def fail(self, place: int, where: str) -> None:
        """Raise an exception in the forward, in a hook at one of its stages, or in an optimizer."""
        self.watched.fail(place, where)

    @invariant()
    def laws_hold(self) -> None:
        """Check every law that holds of all runs; one invariant, so that a run prints one line for it."""
        self.shell_and_pure_engine_agree()
        self.counters_are_consistent()
        self.parameters_stay_finite()
        self.gradients_are_empty_outside_a_window()
        self.a_skip_changes_nothing()
        self.what_was_saved_comes_back()
        self.contexts_are_closed()

    def shell_and_pure_engine_agree(self) -> None:
        """Both interpreters are in the same state."""
        require_none("shell and pure engine", self.watched.apart)

    def counters_are_consistent(self) -> None:
        """The clock counts what was presented, which windows closed, and which optimizers stepped."""
        clock = self.watched.run.shell.state.clock
        require_none("the clock and what has happened", self.watched.ledger.differences(clock))

    def parameters_stay_finite(self) -> None:
        """Behind a SkipNonFinite no parameter becomes infinite or NaN."""
        if self._finite:
            require_none("parameters and finite ones", non_finite_parameters(self.watched.run))

    def gradients_are_empty_outside_a_window(self) -> None:
        """Where nothing has entered a window, and no step was executed, there are no gradients."""
        require_none("gradients and none", kept_gradients(self.watched.run))

    def a_skip_changes_nothing(self) -> None:
        """Without a step no parameter, no optimizer and no shadow moves; an exception before it is undone."""
        require_none("what is there after and before a micro-batch without a step", self.watched.moved)

    def what_was_saved_comes_back(self) -> None:
        """Restoring, and leaving an average, give back bitwise what was there."""
        require_none("what came back and what was there", self.watched.lost)

    def contexts_are_closed(self) -> None:
        """Autocast, gradient mode and averages are as they were outside."""
        require_none("contexts and closed ones", self._contexts.differences())
        shown = unlike({"shown": self.watched.run.shows_an_average}, {"shown": False}, "averages")
        require_none("contexts and closed ones", shown)


def _begin(self: TrainingMachine, hooks: Any) -> None:
    """Start with drawn hooks."""
    self.start(self.training.with_hooks(*(hooks if isinstance(hooks, list | tuple) else [hooks])))


_begin.__name__ = "begin"
