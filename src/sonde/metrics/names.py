"""What numbers are called: in a run, and as keys of the flat dict that `watch.metrics` gives.

In a run a number has a module and a name: `rms` for a metric of outputs, `output_grad/rms` for
another kind, `param_grad/weight/rms` for a parameter of the module. The flat keys are those of
torch-module-monitor: `activation/h.0.mlp/rms`, `gradient/h.0.mlp.weight/rms`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sonde.record import PARAMETER_KINDS, Kind, Site

ROOT: Final = "[root module]"

_FLAT: Final[dict[str, str]] = {
    "output": "activation",
    "param": "parameter",
    "param_grad": "gradient",
}

_RCC: Final = {
    "effective": "RCC (W_t-W_0)x_t/{m}/l2norm",
    "propagating": "RCC W_0(x_t-x_0)/{m}/l2norm",
    "input": "RCC x_t/{m}/l2norm",
    "input_drift": "RCC (x_t-x_0)/{m}/l2norm",
    "weight/effective": "RCC (W_t-W_0)x_t/{m}.weight/l2norm",
    "weight/propagating": "RCC W_0(x_t-x_0)/{m}.weight/l2norm",
    "weight/output": "RCC (W_t-W_0)x_t/{m}.weight/W_t x_t/l2norm",
    "weight/first_output": "RCC W_0(x_t-x_0)/{m}.weight/W_0 x_0/l2norm",
    "weight/input": "RCC (W_t-W_0)x_t/{m}.weight/x_t/l2norm",
    "weight/input_drift": "RCC W_0(x_t-x_0)/{m}.weight/x_t-x_0/l2norm",
}


@dataclass(frozen=True, slots=True)
class Label:
    """A number's module (None: it belongs to no module), its name there, and its flat key."""

    module: str | None
    name: str
    key: str

    def part(self, suffix: str) -> Label:
        """The label of one of several numbers that a metric returns."""
        return Label(self.module, f"{self.name}/{suffix}", f"{self.key}/{suffix}")


def of_metric(
    metric: str, kinds: tuple[Kind, ...], module: str, slot: str, *, is_difference: bool
) -> Label:
    """The label of a metric at a site.

    The first tensor of several that a module takes or returns has the metric's own name, the others
    (`logits`) have theirs in front.
    """
    difference = "_difference" if is_difference else ""
    if kinds[0] in PARAMETER_KINDS:
        return _of_parameter(metric, kinds, module, slot, difference)
    named = metric if slot == "0" else f"{slot}/{metric}"
    if len(kinds) > 1:
        return Label(module, named, f"{named}/{module or ROOT}")
    kind = kinds[0]
    key = f"{_FLAT.get(kind, kind)}{difference}/{module or ROOT}/{named}"
    is_bare = kind == "output" and not is_difference
    return Label(module, named if is_bare else f"{kind}{difference}/{named}", key)


def _of_parameter(
    metric: str, kinds: tuple[Kind, ...], module: str, slot: str, difference: str
) -> Label:
    stage = "_before_clip" if slot.endswith("/before_clip") else ""
    slot = slot.removesuffix("/before_clip")
    path = f"{module}.{slot}" if module else slot
    if len(kinds) > 1:
        return Label(module, f"{slot}/{metric}", f"{metric}/{path}")
    kind = kinds[0]
    key = f"{_FLAT.get(kind, kind)}{difference}{stage}/{path}/{metric}"
    return Label(module, f"{kind}{difference}{stage}/{slot}/{metric}", key)


def of_statistic(site: Site, name: str) -> str:
    """The flat key of a statistic at a site: `activation/h.0.mlp/rms`."""
    module = f"{site.module or ROOT}#{site.call}" if site.call else site.module
    return of_metric(name, (site.kind,), module, site.slot, is_difference=False).key


def of_log(name: str, module: str | None) -> Label:
    """The label of a number that was logged from inside a model, or of no module."""
    key = name if module is None else f"log/{module or ROOT}/{name}"
    return Label(module, name, key)


def of_attention(module: str, head: int | None, term: str) -> Label:
    """The label of a term of one head, or of all heads together."""
    where = (module or ROOT) if head is None else f"{module or ROOT}.head_{head}"
    name = f"attention/{term}" if head is None else f"attention/head_{head}/{term}"
    return Label(module, name, f"attention_{term}/{where}")


def of_rcc(module: str, term: str) -> Label:
    """The label of a term of the refined coordinate check."""
    return Label(module, f"rcc/{term}", _RCC[term].format(m=module or ROOT))


def of_pipeline(module: str | None, slot: str, term: str) -> Label:
    """The label of a stage of the gradient; without a module it is that of all parameters."""
    if module is None:
        return Label(None, f"gradient/{term}", f"gradient/{term}")
    path = f"{module}.{slot}" if module else slot
    return Label(module, f"gradient/{slot}/{term}", f"gradient_{term}/{path}")
