"""The one place that uses what torch does not promise to keep.

Names of torch that begin with an underscore, `torch._dynamo`, `torch._inductor`, `torch._C`, the
dicts that hold hooks, and functions of torch that are replaced while a model is watched. Every
other module asks here; `tests/test_internals.py` checks that. What only traces use is in
`sonde.tracing.torch.internals`.

    registry       what is used, why, since when, and what happens where it is missing
    tensors        versions, gradient hooks, `torch.func`, backward passes, modes
    modules        hooks, children, parameters and buffers of modules; families of modules
    streams        CUDA streams and memory pools
    patches        `clip_grad_norm_`, `GradScaler.step`, `CUDAGraph`, while a model is watched
    frames         which functions the compiler compiles, and code that it keeps
    tracing        the state of the compiler while it traces
    generating     passes over the graphs that the compiler generates code from

Each name is probed once, when its module is loaded (names inside the compiler when they are first
needed, because loading the compiler takes seconds). Where one is missing, something public takes
its place; where there is nothing public, a part of the recording is left out and the run says so.
"""
