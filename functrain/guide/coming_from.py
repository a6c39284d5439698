"""For those who come from nvalchemi-toolkit, Lightning, Accelerate or optax: their code and this, name by name.

Every example below starts from a small regression:

>>> import torch
>>> from torch import nn
>>> def network():
...     return nn.Linear(4, 1)
>>> def loss_of(model, x):
...     return (model(x) - x.sum(1, keepdim=True)).square().mean()
>>> batches = list(torch.randn(8, 16, 4))

and trains it the same way: AdamW, four micro-batches to a step, a norm of at most 1, bfloat16, an average of the
weights.

## Lightning

```python
import lightning.pytorch as pl
from lightning.pytorch.callbacks import EMAWeightAveraging

class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = network()

    def training_step(self, x, place):
        return loss_of(self.model, x)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)

trainer = pl.Trainer(
    max_epochs=1,
    accelerator="cpu",
    accumulate_grad_batches=4,
    gradient_clip_val=1.0,
    precision="bf16-mixed",
    callbacks=[EMAWeightAveraging(decay=0.9)],
)
trainer.fit(Module(), torch.utils.data.DataLoader(batches, batch_size=None))
```

A shell takes the module and the optimizer as they are, and `fit` is the loop:

>>> from functrain import EMA, Accumulate, ClipNorm, MixedPrecision, Shell, SkipNonFinite, Stage, fit, fold, hook, pure
>>> hooks = [Accumulate(every=4), MixedPrecision(precision="bf16"), ClipNorm(max_norm=1.0), EMA(decay=0.9)]
>>> model = network()
>>> shell = Shell(model, torch.optim.AdamW(model.parameters(), lr=1e-2), hooks)
>>> history = fit(shell, batches, loss_of, epochs=1, progress=False)
>>> shell.state.clock.batch, shell.state.clock.step
(8, 2)

| Lightning | functrain |
|---|---|
| `LightningModule` | the module itself, and `loss_fn(model, batch)` |
| `Trainer(max_epochs=).fit(module, loader)` | `fit(shell, loader, loss_fn, epochs)`, or a loop of your own |
| `Trainer(accumulate_grad_batches=)` | `Accumulate(every=)` |
| `Trainer(gradient_clip_val=)`, with `gradient_clip_algorithm="value"` | `ClipNorm(max_norm=)`, `ClipValue` |
| `Trainer(precision="16-mixed")`, `"bf16-mixed"` | `MixedPrecision(precision="fp16")`, `"bf16"` |
| `EMAWeightAveraging(decay=)`, `StochasticWeightAveraging` | `EMA(decay=)`, `SWA(start_step=)` |
| `ModelCheckpoint(monitor=, save_top_k=)` | `Checkpoint(folder, best=, keep=)`, given to `fit` |
| `Callback.on_before_optimizer_step(trainer, module, optimizer)` | a hook at `Stage.BEFORE_OPTIMIZER_STEP` |
| `training_step` returns None to leave a batch out | a hook at `Stage.DO_BACKWARD` returns `proceed=False` |
| `trainer.global_step` | `shell.state.clock.step` |
| `self.log(name, value)` | `shell.update(loss, losses={name: value})`, or a hook that `publishes` |

What differs on purpose:

- The last window of an epoch is divided by what is in it, not by `accumulate_grad_batches`. Of six micro-batches with
  a gradient of one, in windows of four, two whole steps come:

>>> slope = nn.Linear(1, 1, bias=False)
>>> shell, before = Shell(slope, torch.optim.SGD(slope.parameters(), lr=1.0), Accumulate(every=4)), slope.weight.item()
>>> _ = fit(shell, [torch.ones(1, 1)] * 6, lambda model, x: model(x).mean(), epochs=1, progress=False)
>>> round(before - slope.weight.item(), 4)
2.0

In Lightning and in Accelerate it is 1.5. The same holds for a micro-batch that is left out in mid-window.
- A window in which every micro-batch was left out makes no step: optimizer, scheduler and average stand still, and
  `clock.step` does not count it. Lightning counts a step, and moves the schedule.
- A callback may do anything, in the order in which callbacks are listed. A hook returns what it changes, says so in
  `writes`, and runs by priority; that it keeps to it can be checked (`functrain laws my_hooks:mine`).

## Accelerate

```python
from accelerate import Accelerator

accelerator = Accelerator(gradient_accumulation_steps=4, mixed_precision="bf16", cpu=True)
model = network()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
model, optimizer, loader = accelerator.prepare(model, optimizer, torch.utils.data.DataLoader(batches, batch_size=None))
for x in loader:
    with accelerator.accumulate(model):
        accelerator.backward(loss_of(model, x))
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
```

The loop stays yours; what is inside `accumulate` becomes one call:

>>> model = network()
>>> shell = Shell(model, torch.optim.AdamW(model.parameters(), lr=1e-2), hooks)
>>> for x in batches:
...     with shell.batch():
...         shell.update(loss_of(model, x))
>>> shell.flush()
>>> shell.state.clock.step
2

| Accelerate | functrain |
|---|---|
| `Accelerator(gradient_accumulation_steps=, mixed_precision=)` | `Accumulate(every=)`, `MixedPrecision(precision=)` |
| `accelerator.prepare(model, optimizer, scheduler)` | `Shell(model, optimizer, hooks, schedulers=scheduler)` |
| `with accelerator.accumulate(model):` | `with shell.batch():` |
| `accelerator.backward`, `optimizer.step`, `scheduler.step`, `optimizer.zero_grad` | `shell.update(loss)` |
| `if accelerator.sync_gradients: accelerator.clip_grad_norm_(...)` | `ClipNorm(max_norm=)` |
| `accelerator.sync_gradients` | `state.window.boundary` |
| `optimizer.step_was_skipped` | `not state.stepped["main"]` |
| `accelerator.save_state(folder)`, `load_state` | `save(folder, shell)`, `shell.load(folder)` |
| `accelerator.unwrap_model(model)` | nothing: names are plain, whatever wraps the model |

What differs on purpose:

- Nothing is moved to a device, and no loader is replaced: both are left as they are given.
- The last window is divided by what is in it, as above. Where micro-batches hold unequal numbers of tokens, write
  `shell.update(loss, weight=tokens)`: the step is the mean over tokens, over all ranks, in one small reduction per
  window.
- Gradient norm, skips and loss scale are in `shell.state`. The device is asked only where a decision depends on it,
  once, just before the step.

## optax

```python
import jax
import jax.numpy as jnp
import optax

optimizer = optax.MultiSteps(optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-2)), every_k_schedule=4)

def loss_fn(params, x):
    return jnp.mean((x @ params["w"] - x.sum(1, keepdims=True)) ** 2)

@jax.jit
def step(params, state, average, x):
    updates, state = optimizer.update(jax.grad(loss_fn)(params, x), state, params)
    params = optax.apply_updates(params, updates)
    return params, state, optax.incremental_update(params, average, 0.1)

params = {"w": jnp.zeros((4, 1))}
state, average = optimizer.init(params), params
for x in batches:
    params, state, average = step(params, state, average, jnp.asarray(x.numpy()))
```

The pure engine is the counterpart: state in, state out, and the state holds all of it.

>>> def loss_fn(params, buffers, x):
...     return (x @ params["w"] - x.sum(1, keepdim=True)).square().mean()
>>> hooks = [Accumulate(every=4), ClipNorm(max_norm=1.0), EMA(decay=0.9)]
>>> init, step, flush = pure.train_step(loss_fn, pure.adamw(1e-2), hooks)
>>> state = init({"w": torch.zeros(4, 1)})
>>> for x in batches:
...     state = step(state, x)
>>> int(state.clock.step), state.slot("ema")["shadow"]["w"].shape
(2, torch.Size([4, 1]))

| optax | functrain |
|---|---|
| `optax.GradientTransformation(init, update)` | a hook with `init` and `update`; the optimizer is a `pure.Optimizer` |
| `optax.chain(a, b)` | `fold(a, b)`, or `a + b` |
| `optax.adamw`, `adam`, `sgd` | `pure.adamw`, `adam`, `sgd`, equal to those of `torch.optim` |
| `optax.MultiSteps(..., every_k_schedule=)` | `Accumulate(every=)` |
| `optax.clip_by_global_norm`, `clip`, `adaptive_grad_clip` | `ClipNorm`, `ClipValue`, `ClipAdaptive` |
| `optax.apply_if_finite(..., max_consecutive_errors=)` | `SkipNonFinite(max_consecutive=)` |
| `optax.skip_large_updates` | `SkipSpikes(by=FixedLimit(limit=), of="grad_norm")` |
| `optax.incremental_update`, `ema` | `EMA(decay=)` |
| `optax.masked(inner, mask)`, `partition` | `on(selector, hook)`; several optimizers by key |
| `optax.inject_hyperparams` | numbers are in `state.hyper` and in the slots, so a step or a sweep may change them |
| `jax.jit(step)`, `jax.vmap(step)` | `pure.compiled(step)`, `pure.sweep(init, step, over=...)` |

What differs on purpose:

- A hook is told whether the step will be skipped, so that averages, counters and schedules stand still with it. In the
  code above the average moves at every micro-batch; here it moves at steps.
- The order is that of priorities, not of the call, and `fold()` of nothing is the identity.
- Defaults are torch's: `pure.adamw` decays by 0.01, and clipping divides by `norm + 1e-6`.
- `apply_if_finite` lets a NaN through once there were too many in a row. `SkipNonFinite` never does: the shell raises,
  and in the pure engine `pure.check(state)` does.

>>> shell = Shell(slope, torch.optim.SGD(slope.parameters(), lr=1.0), SkipNonFinite(max_consecutive=2))
>>> for _ in range(3):
...     with shell.batch():
...         shell.update(slope(torch.full((1, 1), float("nan"))).mean())
Traceback (most recent call last):
functrain._errors.SkipLimitError: ...

## nvalchemi-toolkit

Its update hooks are the nearest relative: the same stages, priorities and vetoes, on a context that is changed in
place.

```python
from nvalchemi.training import EMAHook, TrainingStage
from nvalchemi.training.hooks import MixedPrecisionHook, TrainingUpdateHook, TrainingUpdateOrchestrator

class FourToAStep(TrainingUpdateHook):
    priority = 10

    def __call__(self, ctx, stage, will_skip):
        place = ctx.batch_count % 4
        if stage is TrainingStage.BEFORE_BATCH:
            return place == 0, ctx.loss
        if stage is TrainingStage.DO_BACKWARD:
            return True, ctx.loss / 4
        return stage is not TrainingStage.DO_OPTIMIZER_STEP or place == 3, ctx.loss

class NormOfOne(TrainingUpdateHook):
    priority = 30

    def __call__(self, ctx, stage, will_skip):
        if stage is TrainingStage.DO_OPTIMIZER_STEP and not will_skip:
            groups = [group for optimizer in ctx.optimizers for group in optimizer.param_groups]
            torch.nn.utils.clip_grad_norm_([p for group in groups for p in group["params"]], 1.0)
        return True, ctx.loss

class NoLargeLoss(TrainingUpdateHook):
    def __call__(self, ctx, stage, will_skip):
        return stage is not TrainingStage.DO_OPTIMIZER_STEP or bool(ctx.loss < 100), ctx.loss

ours = [FourToAStep(), NormOfOne(), NoLargeLoss()]
update = TrainingUpdateOrchestrator(*ours, MixedPrecisionHook(precision="bf16"), EMAHook(decay=0.9))
assert [each.priority for each in update.iter_hooks()] == [10, 20, 30, 50, 50]
# TrainingStrategy(models=..., optimizer_configs=..., hooks=[update], ...).run(loader)
```

Accumulation and clipping are there; a hook of your own returns a state instead of changing a context:

>>> @hook(stages=Stage.DO_OPTIMIZER_STEP)
... def no_large_loss(state, stage, will_skip):
...     return state, state.raw_loss < 100, state.loss
>>> library = [Accumulate(every=4), ClipNorm(max_norm=1.0), MixedPrecision(precision="bf16"), EMA(decay=0.9)]
>>> update = fold(no_large_loss, *library)
>>> [each.priority for each in update]
[10, 20, 30, 50, 50]
>>> model = network()
>>> shell = Shell(model, torch.optim.AdamW(model.parameters(), lr=1e-2), update)
>>> history = fit(shell, batches, loss_of, epochs=1, progress=False)
>>> shell.state.clock.step
2

| nvalchemi-toolkit | functrain |
|---|---|
| `TrainingStage` | `Stage`, the same eighteen |
| `TrainingUpdateHook` | `Hook`, or a function under `@hook` |
| `(ctx, stage, will_skip) -> (proceed, loss)` | `(state, stage, will_skip) -> (state, proceed, loss)` |
| `_exclusive_update_key` | `exclusive` |
| `TrainingUpdateOrchestrator(a, b)`, `a + b`, `iter_hooks()` | `fold(a, b)`, `a + b`, iteration |
| `optimizer_step_skipped` | `state.stepped`, and `state.vetoes` for who it was |
| `ctx.batch`, `ctx.models`, `ctx.optimizers` | `state.batch`; `state.params`, `buffers`, `grads`; `state.hyper` |
| `ctx.loss` | `state.loss` as the hooks made it, `state.raw_loss` as it was computed |
| `ctx.losses` | `state.metrics`, by `shell.update(loss, losses=)` |
| `ctx.step_count`, `batch_count`, `epoch`, `epoch_step_count` | `state.clock.step`, `batch`, `epoch`, `epoch_batch` |
| `ctx.grad_scaler` | `state.scaler`; a scaler of your own is `Shell(scaler=)` |
| `ctx.global_rank`, `ctx.validation` | `state.rank`, `state.validation` |
| `EMAHook(decay=)`, `get_averaged_model()` | `EMA(decay=)`, `shell.averaged_module("ema")` |
| `EMAHook.state_dict()` | read by `shell.load_average("ema", stored)` |
| `MixedPrecisionHook(precision=)` | `MixedPrecision(precision=)` |
| `TrainingStrategy(...).run(loader)` | `fit(shell, loader, loss_fn, epochs)`, or a loop of your own |

What differs on purpose:

- A hook may claim any of the eighteen stages, and is not called where it claims nothing; `init` stands for `SETUP`.
- `proceed=False` at `DO_BACKWARD` drops the micro-batch, and the hooks after it see that. nvalchemi-toolkit does not
  read it there.
- A verdict may be a 0-d tensor, as above: the device is asked once, just before the step, for all verdicts together.
- The loss is scaled after all hooks, so that no hook sees a scaled loss; gradients are unscaled for all that look at
  them from `BEFORE_OPTIMIZER_STEP` on; and a veto after unscaling leaves the scaler ready.
- When some optimizers step and others overflow, that is a step, and each average and scheduler follows its own
  optimizers.
- The shadow of bfloat16 weights is float32, and integer buffers are copied. `averaged_module` raises until the first
  update.
- Two hooks of one name are refused, with the remedy: `named("slow", EMA())`. So are bools and strings for numbers.
"""
