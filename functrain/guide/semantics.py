"""What an update means: words, stages, the fold, the state, the laws, what is no law, and the traps below all of it.

## Words

| word | meaning |
|---|---|
| micro-batch | one forward and backward |
| window | the micro-batches that lead to one step; it counts those *presented*, so it always closes |
| boundary | the micro-batch that completes a window |
| veto | `proceed=False` at a gated stage |
| drop | a veto at `DO_BACKWARD`: this micro-batch never enters its window |
| step | an executed update: at least one optimizer stepped |
| skip | a boundary at which no optimizer stepped; in mid-window one waits, which is no skip |
| slot | the part of `state.hooks` that belongs to one hook, under the hook's name |
| shadow | the averaged weights that an average keeps in its slot |
| donated | the caller gives the leaves of a state away, so they may be overwritten |
| lane | one member of a run under `vmap` |

## A hook

A hook maps `(state, stage, will_skip)` to `(state, proceed, loss)` and does nothing else: it writes into nothing that
it was given, keeps nothing on its own object, and draws from no global generator. What it remembers is in its slot.

>>> import torch
>>> from functrain import ClipNorm, ClipValue, Shell, Stage, TrainState, fold, hook
>>> @hook(stages=Stage.DO_BACKWARD, init=lambda state: {"seen": 0})
... def count(state, stage, will_skip):
...     return state.with_slot("count", {"seen": state.slot("count")["seen"] + 1}), True, state.loss
>>> start = fold(count).prepared(TrainState())
>>> count(start, Stage.DO_BACKWARD, False).state.slot("count"), start.slot("count")
(FrozenMap({'seen': 1}), FrozenMap({'seen': 0}))

Numbers that decide (counts, flags, limits) are Python's in the shell and 0-d tensors in the pure engine. Code that is
written with arithmetic, comparisons and `functrain.select(pred, then, otherwise)` serves both; `if` on such a number
is for the shell alone.

## Stages

A hook is called at the stages that it claims. The act of the interpreter comes after all hooks of a stage.

| stage | fired by | the act, after the hooks | `proceed` | `loss` |
|---|---|---|---|---|
| `SETUP` | both | before it: each slot is built by `init`, and the configuration checked | not read | not read |
| `BEFORE_TRAINING` | `fit` | none | not read | not read |
| `BEFORE_EPOCH` | `fit` | none | not read | not read |
| `BEFORE_BATCH` | both | gradients are cleared; autocast opens, and no-sync in mid-window | a veto keeps | not read |
| `BEFORE_FORWARD` | `fit` | the forward | not read | not read |
| `AFTER_FORWARD` | `fit` | none | not read | not read |
| `BEFORE_LOSS` | `fit` | the loss is computed | not read | not read |
| `AFTER_LOSS` | `fit` | none | not read | not read |
| `BEFORE_BACKWARD` | shell | autocast closes | not read | not read |
| `DO_BACKWARD` | both | the loss is divided by the window, then scaled; one backward | a veto drops | threaded |
| `AFTER_BACKWARD` | shell | none | not read | not read |
| `BEFORE_OPTIMIZER_STEP` | shell | none; at a boundary gradients are unscaled from here on | not read | not read |
| `DO_OPTIMIZER_STEP` | both | at a boundary each optimizer steps, then its scheduler | a veto skips both | not read |
| `AFTER_OPTIMIZER_STEP` | both | the clock advances | not read | not read |
| `AFTER_BATCH` | `fit` | none | not read | not read |
| `AFTER_EPOCH` | `fit` | validation, then the next epoch | not read | not read |
| `AFTER_TRAINING` | `fit` | none | not read | not read |
| `AFTER_VALIDATION` | shell | schedulers that wait for a metric step, wherever that is | not read | not read |

"Both" are the shell and the pure engine; `fit` is a loop around a shell, so it fires all eighteen.

## The fold

- Lower `priority` runs first: 10 accumulation, 20 precision, 30 clipping, 40 skipping, 50 the rest. Equal ones keep
  the order in which they were given.
- Every hook that claims a stage is called once there, also after a veto: what must happen in a skipped step happens.
- At a gated stage each hook gets as `will_skip` what the caller passed, or any veto before it, and the fold proceeds
  iff nothing was passed and nobody vetoed. Elsewhere each hook gets what the caller passed, and no `proceed` is read.
- `proceed` is a bool or a 0-d bool tensor. A tensor makes the verdict a tensor; nothing waits for a device.
- At `DO_BACKWARD` each hook finds its predecessor's loss in `state.loss`; `state.raw_loss` stays the user's.
- At `AFTER_OPTIMIZER_STEP` `will_skip` says that no optimizer stepped, whatever the reason; `state.stepped` says which
  did.

>>> STEP = Stage.DO_OPTIMIZER_STEP
>>> @hook(priority=1, stages=STEP)
... def refuses(state, stage, will_skip):
...     return state, False, state.loss
>>> @hook(priority=2, stages=STEP)
... def looks(state, stage, will_skip):
...     print("called, will_skip is", will_skip)
...     return state, True, state.loss
>>> outcome = (looks + refuses)(TrainState(), STEP, False)
called, will_skip is True
>>> outcome.proceed, outcome.state.veto(STEP, "refuses"), outcome.state.veto(STEP, "looks")
(False, True, False)

## The state

`TrainState` is one immutable pytree. A hook returns another one with `state.replace(...)`; what it changes beyond its
own slot, the metrics that it `publishes` and the loss, it declares in `writes`.

| field | what it holds | who writes it |
|---|---|---|
| `params` | `{model: {name: Tensor}}`, plain names, tied ones once | optimizers; `Lookahead`, `SwitchEMA` |
| `buffers` | the same of the buffers | the forward; a dropped one is undone |
| `grads` | the same of the gradients, only of parameters that have one | the backward; clipping, `Accumulate` |
| `loss` | 0-d, as the hooks have made it; detached after the backward | each hook, by what it returns |
| `raw_loss` | 0-d, as the user computed it | the interpreter |
| `window` | `boundary`, `entered`, `divisor`, `weight`, `total` | the interpreter; `Accumulate` |
| `clock` | `step`, `batch`, `epoch`, `skipped`, `optimizer_steps` and others | the interpreter |
| `hooks` | a slot for each hook | each hook its own |
| `vetoes` | who vetoed what in this batch | the fold |
| `stepped` | which optimizers stepped at the last `DO_OPTIMIZER_STEP` | the interpreter |
| `metrics` | 0-d float32 for logging, NaN before there is one | hooks that publish; `update(losses=)` |
| `scaler` | scale, growth tracker, `found_inf` for each optimizer; or empty | the interpreter; `MixedPrecision` |
| `hyper` | learning rate and the like, by optimizer and group | the interpreter, from the optimizers' groups |
| `opt` | memory of the optimizers, in the pure engine | the optimizers |
| `rng` | the seed of noise that is counted, not drawn | whoever starts the run |
| `batch` | the current batch, or empty | the interpreter |
| `validation` | the latest summary, or empty | the interpreter |
| `donated` | static: the leaves may be overwritten | the caller |
| `autocast` | static: the dtype of mixed precision | set at SETUP |
| `rank`, `world` | static: which process of how many | set at SETUP |
| `owners` | static: which optimizer holds which parameter | set at SETUP |
| `limits` | static: how many skips in a row each hook allows | set at SETUP |

A hook may write any field that is not static, if it says so. `Shell(..., strict=True)` looks at every call, and
refuses what was not declared:

>>> @hook(stages=STEP)
... def sneaks(state, stage, will_skip):
...     return state.replace(clock=state.clock.replace(step=100)), True, state.loss
>>> model = torch.nn.Linear(1, 1)
>>> shell = Shell(model, torch.optim.SGD(model.parameters(), lr=0.1), sneaks, strict=True)
>>> with shell.batch():
...     shell.update(model(torch.ones(1, 1)).sum())
Traceback (most recent call last):
functrain._errors.PurityError: hook 'sneaks' ... changed what it does not own: state.clock.step; declare writes=...

What a hook writes into `hyper` holds for one step; the optimizer's own number stays:

>>> @hook(stages=STEP, writes={"hyper"})
... def stands_still(state, stage, will_skip):
...     return state.replace(hyper={"main": {"0": {"lr": 0.0}}}), True, state.loss
>>> optimizer, before = torch.optim.SGD(model.parameters(), lr=0.1), model.weight.detach().clone()
>>> shell = Shell(model, optimizer, stands_still)
>>> with shell.batch():
...     shell.update(model(torch.ones(1, 1)).sum())
>>> shell.state.clock.step, torch.equal(model.weight, before), optimizer.param_groups[0]["lr"]
(1, True, 0.1)

## Laws

Each is an object in `functrain.testing.laws`, with a checker; `check_hook(hook)` draws states for a hook and shrinks
what breaks one. A hook that keeps them may be composed with any other, compiled, mapped over lanes, saved and
restored.

| law | in words |
|---|---|
| L1 contract | it returns a state, a bool or 0-d bool tensor, and a scalar tensor or None |
| L2 purity | it writes no leaf and no container of its input; the same input gives, bitwise, the same output |
| L3 structure | structure, shapes, dtypes, devices and static fields of the state stay |
| L4 locality | outside the stages that it claims it changes nothing |
| L5 frame | it changes only its slot, its metrics, the loss and what `writes` declares |
| L6 veto safety | where the step is off it moves no parameter or gradient, and no shadow of a model that did not step |
| L7 traceable | under `torch.compile(fullgraph=True)` it does the same, one graph over many steps |
| L8 vmap | a lane of a mapped run does what that lane does alone: decisions exactly, numbers up to rounding |
| L9 round trip | slot and configuration survive saving and loading bitwise |
| L10 monoid | `fold()` changes nothing, `+` is associative, the order is the stable sort by priority |
| L11 veto | a fold proceeds iff every member does; adding a hook never turns a skip into a step |
| L12 exactly once | each hook is called once at each stage it claims, veto or not; there is at most one backward |
| L13 agreement | the shell and the pure engine do the same, bitwise (Adam and AdamW up to two ulp a step in float32) |
| L14 donation | a donated call returns bitwise what the undonated one returns |

>>> from functrain.testing import check_hook, laws
>>> print(check_hook(count, laws=[laws.PURITY, laws.LOCALITY], max_examples=5).broken)
()

## What is no law

- Hooks of equal priority do not commute: what was given first runs first.

>>> def clipped(*hooks):
...     pipeline = fold(*hooks)
...     state = pipeline.prepared(TrainState(grads={"main": {"w": torch.tensor([3.0, 4.0])}}))
...     return pipeline(state, STEP, False).state.grads["main"]["w"]
>>> norm, value = ClipNorm(max_norm=1.0), ClipValue(clip_value=2.0)
>>> clipped(norm, value), clipped(value, norm)
(tensor([0.6000, 0.8000]), tensor([0.7071, 0.7071]))

- Nor is `a + a` the same as `a`; one instance twice is refused, since both would own one slot.

>>> norm + norm
Traceback (most recent call last):
ValueError: ...

- The order may change a decision: a hook that judges the clipped gradient decides otherwise than one that judges it
  before. `SkipSpikes` reads the norm that `ClipNorm` publishes, which is the one before clipping, wherever it stands.
- The shell and the pure engine need not agree on a parameter that is used only sometimes: torch leaves it without a
  gradient, `torch.func` gives zeros, and under zeros momentum and decay still move it. `init(..., batch=)` finds those
  that are never used, and leaves them out.
- More micro-batches in a window are one larger batch only for what is a mean over samples: not for batch
  normalization.

## Traps of torch

What torch 2.13 does, and what is done about it here. Each is an example, so it is true as long as the tests pass.

**A mask does not stop a NaN.** `0 * nan` is NaN, and `lerp` with a weight of 1 still touches the old value. Branch, or
pick with `torch.where`; `functrain.select` does. Gradients flow through both sides of a `where`, so a value that may
be NaN is made harmless *before* it is computed with.

>>> bad = torch.tensor(float("nan"))
>>> 0 * bad, torch.lerp(bad, torch.tensor(1.0), 1.0), torch.where(torch.tensor(True), torch.tensor(1.0), bad)
(tensor(nan), tensor(nan), tensor(1.))
>>> x = torch.zeros((), requires_grad=True)
>>> torch.autograd.grad(torch.where(x > 0, x.sqrt(), x), x)
(tensor(nan),)

**A number kept as a float32 tensor is another number.** `1 - decay` is taken in double and cast once, or an average is
not bitwise torch's.

>>> (1 - torch.tensor(0.999)).item() == torch.tensor(1 - 0.999).item()
False

**Unused: None or zeros.** Two ways to the gradient differ where a parameter is not used; see above.

>>> used, unused = torch.ones((), requires_grad=True), torch.ones((), requires_grad=True)
>>> (2 * used).backward()
>>> print(unused.grad, torch.func.grad(lambda p: 2 * p["used"])({"used": used, "unused": unused})["unused"])
None tensor(0.)

**`functional_call` writes into the buffers that it is given**, and batch normalization and `.data` do not even move
the version counter. The pure engine copies buffers on the way in; the law of purity looks at contents, too.

>>> norm_layer, mean = torch.nn.BatchNorm1d(1), torch.zeros(1)
>>> given = {**dict(norm_layer.named_parameters()), "running_mean": mean, "running_var": torch.ones(1)}
>>> _ = torch.func.functional_call(norm_layer, given, (torch.ones(4, 1),))
>>> mean, mean._version
(tensor([0.1000]), 0)

**`torch._foreach_*` has no rule for `vmap`**, and refuses integers. An average is therefore written once and run
twice: leaf by leaf when traced, in groups in the shell, and a test says that both agree.

>>> torch.vmap(lambda a, b: torch._foreach_lerp([a], [b], 0.5)[0])(torch.ones(2), torch.zeros(2))
Traceback (most recent call last):
RuntimeError: Batching rule not implemented for aten::_foreach_lerp...

**`clip_grad_norm_` on stacked members takes one norm for all.** In a sweep each lane has its own, as alone.

>>> members = torch.nn.Parameter(torch.zeros(2, 1))
>>> members.grad = torch.tensor([[30.0], [0.1]])
>>> _ = torch.nn.utils.clip_grad_norm_([members], 1.0)
>>> members.grad.squeeze()  # the second was small enough, and has been made smaller
tensor([1.0000, 0.0033])

**`torch.optim.Adam` takes one learning rate**, so members with a rate each need an optimizer that is a function:
`pure.adam`.

>>> torch.optim.Adam([members], lr=torch.tensor([0.1, 0.2]))
Traceback (most recent call last):
ValueError: Tensor lr must be 1-element

**Under `vmap` the noise of a member depends on how many there are**, from the second draw on. A sweep over seeds that
equals the loop over seeds takes noise as data: `pure.Noise` counts instead of drawing.

>>> def two_draws(x):
...     return torch.rand(1), torch.rand(1)
>>> def second_draw_of_the_first(members):
...     torch.manual_seed(0)
...     return torch.vmap(two_draws, randomness="different")(torch.zeros(members))[1][0]
>>> torch.equal(second_draw_of_the_first(2), second_draw_of_the_first(3))
False

**`if` on a tensor ends a trace**, and so does a Python counter, which compiles again at each value. Vetoes are tensors
and are selected; counters are 0-d tensors.

>>> torch.vmap(lambda x: x if x > 0 else -x)(torch.ones(2))
Traceback (most recent call last):
RuntimeError: vmap: It looks like you're attempting to use a Tensor in some data-dependent control flow...

**`GradScaler.step` returns None on a skip, and on a step of most optimizers as well**; a falling scale tells a skip
apart only while it may fall. Here `state.stepped` says what happened.

>>> scaler, sgd = torch.amp.GradScaler("cpu"), torch.optim.SGD(model.parameters(), lr=0.1)
>>> for value in (1.0, float("inf")):
...     sgd.zero_grad()
...     scaler.scale(model(torch.full((1, 1), value)).sum()).backward()
...     print(scaler.step(sgd))
...     scaler.update()
None
None

**None is a leaf for `torch.utils._pytree`, and nothing for optree.** A state holds no None: absent is an empty
mapping, or NaN.

>>> import optree
>>> torch.utils._pytree.tree_leaves({"a": None}), optree.tree_leaves({"a": None})
([None], [])

**A tensor made under `inference_mode` can never be written to outside it.** The shell leaves that mode while it makes
its own.

>>> with torch.inference_mode():
...     made = torch.ones(1)
>>> made.add_(1)
Traceback (most recent call last):
RuntimeError: Inplace update to inference tensor outside InferenceMode is not allowed...

**`hasattr(model, "module")` unwraps too much**: a user's model may have a child of that name. Wrappers are known by
their type.
"""
