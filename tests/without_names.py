"""Trainings with a torch that lacks names, each in a process of its own. Not a test itself.

Reads `[{"name", "symbols", "compiles"}, ...]` and writes for each what became of the training. The
processes are forks of one that has imported torch, and of Sonde all that knows nothing of torch:
importing takes most of the time.
"""

import contextlib
import importlib
import json
import os
import sys
import traceback

import torch
import torch._dynamo
from torch import nn
from torch.utils.checkpoint import checkpoint

USED_BY_TORCH = {
    "torch:Tensor._version",
    "torch:Tensor._backward_hooks",
    "torch:UntypedStorage._cdata",
    "torch:_foreach_copy_",
    "torch._C:_current_graph_task_id",
    "torch.autograd:Variable._execution_engine",
    "torch._C:_set_grad_enabled",
    "torch._C:_get_tracing_state",
    "torch._C:_len_torch_dispatch_stack",
    "torch._C:_autograd._top_saved_tensors_default_hooks",
    "torch._C:_dynamo.eval_frame.set_code_exec_strategy",
    "torch._C:_dynamo.eval_frame.reset_code",
    "torch._C:_dynamo.eval_frame._FrameAction",
    "torch._C:_dynamo.eval_frame._FrameExecStrategy",
    "torch._C:_functorch.maybe_current_level",
    "torch._C:_functorch.is_functorch_wrapped_tensor",
    "torch._C:_functorch.get_unwrapped",
    "torch._C:_DisableFuncTorch",
    "torch._C:_is_fwd_grad_enabled",
    "torch._guards:TracingContext.try_get",
    "torch._dynamo.symbolic_convert:InstructionTranslator.current_tx",
    "torch._dynamo.resume_execution:ContinueExecutionCache.cache",
    "torch.nn.utils.clip_grad:_clip_grads_with_norm_",
    "torch.amp.grad_scaler:GradScaler._scale",
    "torch.utils.hooks:RemovableHandle.next_id",
    "torch.nn:Module._forward_hooks",
    "torch.nn:Module._modules",
    "torch.nn:Module._compiled_call_impl",
    "torch.nn:Module._call_impl.__code__",
    "torch.optim:Optimizer._optimizer_step_pre_hooks",
    "torch._ops:OpOverload._schema",
    "torch._ops:HigherOrderOperator._name",
    "torch._dynamo:config.skip_nnmodule_hook_guards",
    "torch._dynamo.eval_frame:_stance",
    "torch._dynamo.eval_frame:OptimizedModule",
    "torch.utils._python_dispatch:TorchDispatchMode",
    "torch.utils._python_dispatch:_get_current_dispatch_mode",
    "torch.utils._python_dispatch:_get_current_dispatch_mode_stack",
    "torch.utils._python_dispatch:_disable_current_modes",
    "torch.fx._symbolic_trace:is_fx_symbolic_tracing",
    "torch.compiler:_is_exporting_flag",
}
"""Without these torch itself would fail: they are there again when Sonde has made its probes."""


MADE_BEFORE = (torch._ops.OpOverload, torch._ops.HigherOrderOperator)
"""Classes whose objects have the name since torch was imported."""


DOORS = (
    "_torch_internals.tensors",
    "_torch_internals.generating",
    "_torch_internals.streams",
    "_torch_internals.patches",
    "_torch_internals.placements",
    "_torch_internals.tracing",
    "tracing.torch.internals",
)


class Gone:
    """What is found in place of a name."""

    def __get__(self, instance, owner):
        raise AttributeError("gone")

    def __init__(self, name):
        self.name = name

    def __set__(self, instance, value):
        vars(instance)[self.name] = value


def remove(symbol):
    """Take a name away; return a function that puts it back."""
    module, _, path = symbol.partition(":")
    if not path:
        before = sys.modules.get(module)
        sys.modules[module] = None
        return lambda: sys.modules.update({module: before})
    owner = importlib.import_module(module)
    *parents, name = path.split(".")
    if name == "__code__":
        name = parents.pop()
    for parent in parents:
        owner = getattr(owner, parent)
    if isinstance(owner, type) and not hasattr(owner, name) and owner not in MADE_BEFORE:
        return remove_from_instances(owner, name)
    if isinstance(owner, type):
        had, own = name in vars(owner), vars(owner).get(name)
        setattr(owner, name, Gone(name))
        return lambda: setattr(owner, name, own) if had else delattr(owner, name)
    if owner is torch.compiler and name == "assume_constant_result":
        mark, owner.assume_constant_result = owner.assume_constant_result, lambda function: function
        return lambda: setattr(owner, name, mark)
    before = getattr(owner, name, None)
    with contextlib.suppress(AttributeError):  # a build without CUDA lacks some
        delattr(owner, name)
    return lambda: setattr(owner, name, before)


def remove_from_instances(owner, name):
    init = owner.__init__

    def without(self, *args, **kwargs):
        init(self, *args, **kwargs)
        vars(self).pop(name, None)

    owner.__init__ = without
    return lambda: setattr(owner, "__init__", init)


class Net(nn.Module):
    """With what needs internals: recomputation, buffers, a shared module, dropout."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.norm = nn.BatchNorm1d(8)
        self.again = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
        self.reentrant = nn.Sequential(nn.Linear(8, 8), nn.GELU())
        self.mapped = nn.Linear(8, 8)
        self.drop = nn.Dropout(0.1)
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        x = self.norm(self.first(x))
        if not torch.compiler.is_compiling():
            x = checkpoint(self.again, x, use_reentrant=False)
            x = checkpoint(self.reentrant, x, use_reentrant=True)
            x = x + torch.func.vmap(self.mapped)(x)
        return self.head(self.drop(self.again(x)))


def train(watch_to=None, *, compiles=False):
    """Return the losses and weights, as bits."""
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    called = torch.compile(model, backend="eager") if compiles else model
    watch = None
    if watch_to is not None:
        import sonde

        folder, name = os.path.split(watch_to)
        watch = sonde.watch(model, optimizer, every=1, log="all", dir=folder, name=name)
    found = []
    for _ in range(3):
        loss = called(torch.randn(5, 6)).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item().hex())
    with torch.no_grad():
        found += [p.double().sum().item().hex() for p in model.state_dict().values()]
    if watch is not None:
        watch.close()
    return found


def child(case, folder):
    put_back = [(symbol, remove(symbol)) for symbol in case["symbols"]]
    for module in DOORS:
        importlib.import_module(f"sonde.{module}")
    from sonde._torch_internals import frames, registry, tracing

    if case["compiles"]:
        tracing.is_ready()
        frames.check_markers()
    entry = registry.NAMES.get(case["name"])
    if entry is not None and entry.is_there is None:
        entry.find()
    for symbol, put in reversed(put_back):
        if symbol in USED_BY_TORCH:
            put()
    result = {"is_there": None if entry is None else entry.is_there}
    for compiles in (False, True) if case["compiles"] else (False,):
        path = os.path.join(folder, case["name"] + ("_compiled" if compiles else ""))
        result[path] = [train(compiles=compiles), train(path, compiles=compiles)]
        torch.compiler.reset() if compiles else None
    return result


def preload():
    """Import what knows nothing of torch, and so of none of the names."""
    for module in ("watching", "store", "store.writing.writer", "graph.model"):
        importlib.import_module(f"sonde.{module}")
    doors = ("sonde._torch_internals", "sonde.capture.torch", "sonde.graph.torch")
    assert not [name for name in sys.modules if name.startswith(doors)]


def main(folder):
    preload()
    for case in json.load(sys.stdin):
        out = os.path.join(folder, f"{case['name']}.json")
        pid = os.fork()
        if pid == 0:
            try:
                result = child(case, folder)
            except BaseException:
                result = {"error": traceback.format_exc()}
            with open(out, "w") as file:
                json.dump(result, file)
            os._exit(0)
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main(sys.argv[1])
