"""A witness: independent hooks that keep copies of all tensors, and what sketches of them must be.

Written the slow and obvious way, without a line of what is tested: every tensor of every call is
cloned, every gradient comes from a hook of its own, names come from `named_modules`. The only thing
shared is the reference kernel.
"""

import dataclasses
from collections import defaultdict

import numpy as np
import torch
from torch import Tensor

from sonde.kernels import reference
from sonde.record import COUNTS, EXTREMA, SUMS, Site
from sonde.sketch import Sketch


class Witness:
    """Keeps what a model and its optimizers do, by step and name of site."""

    def __init__(self, model, *optimizers, first_step=0):
        self.seen = defaultdict(list)
        self.step = first_step
        self._model = model
        self._calls = defaultdict(int)
        self._old = {}
        self._frozen = set()
        self._handles = []
        self._names = {id(p): n for n, p in model.named_parameters()}
        for path, module in model.named_modules():
            self._handles += [
                module.register_forward_pre_hook(self._entering(path, model), with_kwargs=True),
                module.register_forward_hook(self._leaving(path)),
            ]
        self._active = defaultdict(list)
        self._optimizers = optimizers
        self._last = optimizers[-1] if optimizers else None
        for optimizer in optimizers:
            self._handles += [
                optimizer.register_step_pre_hook(self._before),
                optimizer.register_step_post_hook(self._after),
            ]

    def _entering(self, path, model):
        def hook(module, args, kwargs):
            if torch._C._current_graph_task_id() != -1:
                return
            if module is model and not self._active[path]:
                self._calls.clear()
            call = self._calls[path]
            self._calls[path] += 1
            self._active[path].append(call)
            for slot, x in [*tensors(args), *tensors(kwargs)]:
                self._keep(Site(path, "input", call, slot), x)
                self._keep_gradient(Site(path, "input_grad", call, slot), x)

        return hook

    def _leaving(self, path):
        def hook(module, args, output):
            if torch._C._current_graph_task_id() != -1:
                return
            call = self._active[path].pop()
            for slot, x in tensors(output):
                self._keep(Site(path, "output", call, slot), x)
                self._keep_gradient(Site(path, "output_grad", call, slot), x)

        return hook

    def _keep(self, site, x):
        self.seen[self.step, site.name].append(x.detach().clone())

    def _keep_gradient(self, site, x):
        if x.requires_grad:
            handle = x.register_hook(lambda grad: self._keep(site, grad))
            if x.is_leaf:
                self._handles.append(handle)

    def _before(self, optimizer, args, kwargs):
        parameters = [p for g in optimizer.param_groups for p in g["params"]]
        if optimizer is self._last:
            trained = {id(p) for o in self._optimizers for g in o.param_groups for p in g["params"]}
            parameters += [p for p in self._model.parameters() if id(p) not in trained]
        for p in parameters:
            site = self._site(p, "param")
            self._keep(site, p)
            if not p.requires_grad and len({s for s, name in self.seen if name == site.name}) > 1:
                self._frozen.add((self.step, site.name))
            if p.grad is not None:
                self._keep(self._site(p, "param_grad"), p.grad)
            self._old[id(p)] = p.detach().clone()

    def _after(self, optimizer, args, kwargs):
        for group in optimizer.param_groups:
            for p in group["params"]:
                if p.requires_grad:
                    # The change is taken in float32, as is documented of the kernels.
                    wide = torch.float64 if p.dtype is torch.float64 else torch.float32
                    old = self._old[id(p)].to(wide)
                    self._keep(self._site(p, "update"), p.detach().to(wide) - old)
                for key, value in optimizer.state.get(p, {}).items():
                    if isinstance(value, Tensor) and key != "step":
                        self._keep(self._site(p, "optim", f"/{key}"), value)
        if optimizer is self._last:
            self.step += 1

    def _site(self, parameter, kind, suffix=""):
        path, _, name = self._names[id(parameter)].rpartition(".")
        return Site(path, kind, 0, name + suffix)

    def at(self, step) -> dict[str, Sketch]:
        return {
            name: Sketch.merged(sketch_of(x) for x in values)
            for (at, name), values in self.seen.items()
            if at == step
        }

    def check(self, memory, *, steps=None, kinds=None, without=()):
        """The recorded sites are exactly those, and so are their sketches."""
        steps = sorted({s for s, _ in self.seen if s < self.step}) if steps is None else steps
        assert steps, "nothing was witnessed"
        for step in steps:
            expected = self.at(step)
            if kinds is not None:
                expected = {n: s for n, s in expected.items() if n.split("/")[1] in kinds}
            expected = {n: s for n, s in expected.items() if n not in without}
            found = memory.at(step)
            # A frozen parameter is recorded once, and now and then to see that it is as it was.
            unread = {n for n in set(expected) - set(found) if (step, n) in self._frozen}
            expected = {n: s for n, s in expected.items() if n not in unread}
            assert set(found) == set(expected), (
                f"step {step}: only recorded {sorted(set(found) - set(expected))[:9]}, "
                f"only witnessed {sorted(set(expected) - set(found))[:9]}"
            )
            for name, sketch in expected.items():
                assert_same(found[name], sketch, name)

    def remove(self):
        for handle in self._handles:
            handle.remove()


def tensors(value, path=""):
    """Each tensor in nested values, with its path."""
    if isinstance(value, Tensor):
        return [(path or "0", value)]
    if isinstance(value, dict):
        items = value.items()
    elif hasattr(value, "_fields"):
        items = zip(value._fields, value, strict=True)
    elif isinstance(value, tuple | list):
        items = enumerate(value)
    elif dataclasses.is_dataclass(value):
        items = [(f.name, getattr(value, f.name)) for f in dataclasses.fields(value)]
    else:
        return []
    return [pair for k, v in items for pair in tensors(v, f"{path}.{k}" if path else str(k))]


def sketch_of(x: Tensor) -> Sketch:
    """By the definition."""
    x = x.detach()
    if x.layout is not torch.strided:
        x = x.to_dense()
    return reference.sketch(x.to(torch.float64).numpy())


def assert_same(found: Sketch, expected: Sketch, name="") -> None:
    """Counts, extrema and bins exactly; sums to float64 rounding.

    n additions in any order are off by at most n * 2**-53 * sum(|terms|), and a term has at most
    four roundings of its own; both sides may err.
    """
    for field in (*COUNTS, *EXTREMA):
        a, b = getattr(found, field), getattr(expected, field)
        assert a == b, f"{name}: {field} is {a}, not {b}"
    np.testing.assert_array_equal(found.bins, expected.bins, err_msg=name)
    sizes = (expected.sum_abs, expected.sum_abs, expected.sum_sq, expected.sum_4)
    for field, size in zip(SUMS, sizes, strict=True):
        a, b = getattr(found, field), getattr(expected, field)
        bound = 2 * (expected.count + 4) * (2.0**-53 * size + 2.0**-1074)
        assert a == b or abs(a - b) <= bound, f"{name}: {field} is {a}, not {b}"
