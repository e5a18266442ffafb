"""Attention that a module shows to its monitor: each head's tensors and its entropy."""

from __future__ import annotations

from torch import Tensor, nn

from sonde.compat.torch_module_monitor.mixin import MonitorMixin, ReferenceSide
from sonde.compat.torch_module_monitor.monitor import ModuleMonitor
from sonde.metrics.model import Merge
from sonde.metrics.torch.attention import AttentionCall, finish, heads_of, join, of_call

_ENTROPY = Merge(join, lambda raw: finish(raw)["entropy"])


def monitor_scaled_dot_product_attention(
    monitor: ModuleMonitor | ReferenceSide | None,
    module: str | nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,  # noqa: ARG001  # entropy is that of the weights before dropout
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,  # noqa: ARG001  # fewer heads of keys are seen from their shape
    activation: Tensor | None = None,
    is_reference: bool = False,
) -> None:
    """Ask the metrics of activations about each head of queries, keys, values and outputs, as
    `{module}.head_{i}.query`; log `attention_entropy/{module}.head_{i}` in nats.

    Tensors are (..., heads, length, width). A module of the reference is known as such.
    """
    if isinstance(monitor, ReferenceSide):
        monitor, is_reference = monitor.monitor, True
    if monitor is None or not monitor.is_in_step:
        return
    is_reference |= isinstance(module, MonitorMixin) and module.is_reference_module
    name = monitor.name_of(module, is_reference=is_reference)
    heads = heads_of(query).shape[1]
    parts = {"query": query, "key": key, "value": value, "activation": activation}
    for part, tensor in parts.items():
        if tensor is not None:
            x = heads_of(tensor.detach())
            for i in range(heads):
                shown = x[:, i * x.shape[1] // heads]
                monitor.monitor_activations(f"{name}.head_{i}.{part}", shown, is_reference)
    if not is_reference and monitor.is_monitoring():
        call = AttentionCall(query.detach(), key.detach(), attn_mask, is_causal, scale)
        raw = of_call(call)
        for i in range(heads):
            monitor.measure(f"attention_entropy/{name}.head_{i}", raw[:, i], reduce=_ENTROPY)
