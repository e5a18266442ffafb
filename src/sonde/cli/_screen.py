"""A summary on a terminal. Everything that comes from the run is cleaned before it is printed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from rich import box
from rich.console import Group
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from sonde.cli import _status, _text
from sonde.cli._summary import (
    KindSummary,
    NonFiniteSites,
    RunSummary,
    ScalarSummary,
    SiteSummary,
)
from sonde.cli._text import clean, number, plural
from sonde.store.reading import rank_states

if TYPE_CHECKING:
    from sonde.store.reading.info import RunInfo

_SITES_SHOWN: Final = 24
_SCALARS_SHOWN: Final = 12
_NOTES_SHOWN: Final = 6


def draw(summary: RunSummary, *, shown_as: str, all_sites: bool) -> None:
    """Print everything that there is to say, the most urgent first."""
    console = _text.console()
    info = summary["info"]
    console.print(_title(info))
    console.print(Padding(_facts(info), (0, 0, 1, 2), expand=False))
    for heading, body in (
        ("non-finite values", _non_finite(summary["non_finite"], info)),
        ("ranks", _ranks(info)),
        ("scalars", _scalars(summary["scalars"])),
        (_kinds_heading(summary["kinds"]), _kinds(summary["kinds"])),
        ("sites", _sites(summary["sites"], all_sites=all_sites)),
        ("not recorded", _losses(info)),
        ("next", _next(shown_as, summary)),
    ):
        if body is not None:
            console.print(Rule(Text(heading, style="bold"), align="left", style="dim"))
            console.print(Padding(body, (0, 0, 1, 2), expand=False))


def _title(info: RunInfo) -> Text:
    title = Text.assemble(("sonde  ", "bold cyan"), (clean(info["name"]), "bold"), "  ")
    title.append_text(_status.styled(info["status"]))
    if info["reason"] and info["reason"] != "finished":
        title.append(f"  {clean(info['reason'])}", style="dim")
    return title


def _facts(info: RunInfo) -> Group:
    steps = info["steps"]
    seen = (
        f"steps {steps['first']:,} to {steps['last']:,}, {steps['recorded']:,} recorded"
        if steps["recorded"]
        else "no step recorded yet"
    )
    volume = f"{plural(info['records'], 'sketch').replace('sketchs', 'sketches')}, "
    volume += f"{plural(info['numbers'], 'number')}, {_text.bytes_text(info['size_bytes'])}"
    lines = [("recorded", f"{seen} · {volume}"), ("started", _started(info))]
    lines.append(("versions", ", ".join(f"{k} {v}" for k, v in info["versions"].items())))
    lines += _settings(info["config"])
    if info["overhead"] is not None:
        lines.append(("cost", _cost(info["overhead"])))
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column(overflow="fold")
    for name, text in lines:
        grid.add_row(name, clean(text))
    return Group(grid)


def _started(info: RunInfo) -> str:
    parts = [str(info["created"] or "at an unknown time").replace("T", " ").replace("Z", " UTC")]
    host = info["host"].get("hostname")
    if host:
        parts.append(f"on {host}")
    if (info["world_size"] or 1) > 1:
        parts.append(plural(info["world_size"] or 1, "rank"))
    attempts = {(a["rank"], a["attempt"]) for a in info["attempts"]}
    resumed = len(attempts) - len({rank for rank, _ in attempts})
    if resumed > 0:
        parts.append(f"resumed {plural(resumed, 'time')}")
    git = info["git"]
    if isinstance(git, dict) and isinstance(git.get("commit"), str):
        changed = " with changes" if git.get("is_dirty") else ""
        parts.append(f"git {git['commit'][:8]}{changed}")
    return " · ".join(parts)


def _settings(config: Mapping[str, object]) -> list[tuple[str, str]]:
    """What was watched, and what the user said about the training."""
    watch, user = config.get("watch"), config.get("user")
    if not isinstance(watch, dict):
        watch, user = config, None
    shown = {"watch": watch, "config": user if isinstance(user, dict) else {}}
    return [
        (name, ", ".join(f"{k}={_short(v)}" for k, v in values.items() if v is not None))
        for name, values in shown.items()
        if values
    ]


def _cost(overhead: object) -> str:
    if isinstance(overhead, int | float):
        return f"{overhead:.3f} × the step without Sonde"
    if not isinstance(overhead, dict):
        return str(overhead)
    spent, wall = overhead.get("hooks_s"), overhead.get("wall_s")
    if isinstance(spent, int | float) and isinstance(wall, int | float) and wall > 0:
        text = f"hooks took {spent:.3g} s of {wall:.3g} s, {100 * spent / wall:.1f} % of the time"
        device = overhead.get("device")
        if isinstance(device, dict) and device.get("other_step_s"):
            recorded, other = device["recorded_step_s"], device["other_step_s"]
            text += f"; a recorded step takes {recorded / other:.2f} × another on the device"
        if overhead.get("left_out_steps"):
            share = 100 * overhead.get("budget", 0)
            text += (
                f"; {plural(overhead['left_out_steps'], 'step')} left out to keep to {share:g} %"
            )
        return text
    return ", ".join(f"{k} {_short(v)}" for k, v in overhead.items())


def _non_finite(found: NonFiniteSites, info: RunInfo) -> Group | Text | None:
    if not found["sites"]:
        return Text("none", style="green") if info["records"] else None
    table = _table("first at step", ">", "site", "<", "NaN", ">", "Inf", ">", "steps affected", ">")
    for row in found["first"]:
        table.add_row(
            number(row["first_step"]),
            Text(clean(row["name"]), style="bold red"),
            number(row["nans"]),
            number(row["infs"]),
            number(row["steps"]),
        )
    more = found["sites"] - len(found["first"])
    tail = [Text(f"and {plural(more, 'more site')}", style="dim")] if more > 0 else []
    return Group(table, *tail)


def _scalars(scalars: list[ScalarSummary]) -> Group | None:
    if not scalars:
        return None
    table = _table("name", "<", "", "<", "first", ">", "last", ">", "lowest", ">", "at step", ">")
    for scalar in scalars[:_SCALARS_SHOWN]:
        name = (
            scalar["name"] if scalar["phase"] == "train" else f"{scalar['phase']} {scalar['name']}"
        )
        style = "" if _is_finite(scalar["last"]) else "bold red"
        table.add_row(
            clean(name),
            Text(_text.spark(scalar["line"], 32), style="cyan"),
            _value(scalar["first"]),
            Text(_value(scalar["last"]), style=style),
            _value(scalar["min"]),
            number(scalar["min_step"]),
        )
    more = len(scalars) - _SCALARS_SHOWN
    tail = [Text(f"and {plural(more, 'more scalar')}", style="dim")] if more > 0 else []
    return Group(table, *tail)


def _kinds_heading(kinds: list[KindSummary]) -> str:
    step = max((k["step"] for k in kinds if k["step"] is not None), default=None)
    return "kinds of sites" if step is None else f"kinds of sites at step {step:,}"


def _kinds(kinds: list[KindSummary]) -> Table | None:
    if not kinds:
        return None
    table = _table(
        *("kind", "<", "sites", ">", "rms through the model", "<", "median", ">"),
        *("largest", ">", "at", "<", "max |x|", ">", "zeros", ">", "NaN/Inf", ">"),
    )
    for kind in kinds:
        rms = [math.nan if v is None else v for v in kind["rms"]]
        table.add_row(
            Text(clean(kind["kind"]), style="bold"),
            number(kind["sites"]),
            Text(_text.spark(rms, log=True), style="cyan"),
            number(kind["rms_median"]),
            number(kind["rms_max"]),
            clean(_without_kind(kind["rms_max_site"] or "–", kind["kind"])),
            number(kind["max_abs"]),
            _percent(kind["sparsity"]),
            Text(number(kind["non_finite"]), style="bold red" if kind["non_finite"] else "dim"),
        )
    return table


def _sites(sites: list[SiteSummary], *, all_sites: bool) -> Group | Text | None:
    if not sites:
        return None
    if len(sites) > _SITES_SHOWN and not all_sites:
        return Text(f"{len(sites):,} sites; `--sites` lists them", style="dim")
    table = _table(
        *("site", "<", "shape", "<", "dtype", "<", "mean", ">", "std", ">", "rms", ">"),
        *("max |x|", ">", "zeros", ">", "NaN", ">", "Inf", ">"),
    )
    last_kind = None
    for site in sites:
        if last_kind is not None and site["kind"] != last_kind:
            table.add_section()
        last_kind = site["kind"]
        is_bad = bool(site["nans"] or site["infs"])
        table.add_row(
            Text(clean(site["name"]), style="bold red" if is_bad else ""),
            Text("×".join(str(n) for n in site["shape"] or []) or "scalar", style="dim"),
            Text(clean(site["dtype"]).removeprefix("torch."), style="dim"),
            *(number(site[stat]) for stat in ("mean", "std", "rms", "max_abs")),
            _percent(site["sparsity"]),
            *(
                Text(number(site[n]), style="bold red" if site[n] else "dim")
                for n in ("nans", "infs")
            ),
        )
    return Group(table)


def _ranks(info: RunInfo) -> Group | None:
    """Ranks that died, never came or are behind, and what they hold that they should not."""
    lines = [Text(clean(told), style="red") for told in rank_states.problems(info["ranks"])]
    drift = info["drift"]
    lines += [Text(clean(found["message"]), style="red") for found in drift[:_NOTES_SHOWN]]
    _more(lines, len(drift) - _NOTES_SHOWN, "tensor that differs between ranks")
    return Group(*lines) if lines else None


def _losses(info: RunInfo) -> Group | None:
    lines: list[Text] = []
    lines += [
        Text(f"{plural(n, 'record')} dropped ({clean(cause)})", style="yellow")
        for cause, n in info["dropped"].items()
    ]
    lines += [
        Text(f"{clean(damage['file'])} {clean(damage['problem'])}", style="red")
        for damage in info["damaged"][:_NOTES_SHOWN]
    ]
    _more(lines, len(info["damaged"]) - _NOTES_SHOWN, "damaged file")
    for event in [*info["skipped"], *info["warnings"]][:_NOTES_SHOWN]:
        where = f" at {clean(event['place'])}" if event["place"] else ""
        often = f" ({event['count']:,} times)" if event["count"] > 1 else ""
        style = "dim" if event["code"] == "skipped" else "yellow"
        lines.append(Text(f"{clean(event['message'])}{where}{often}", style=style))
    _more(lines, len(info["skipped"]) + len(info["warnings"]) - _NOTES_SHOWN, "note")
    return Group(*lines) if lines else None


def _more(lines: list[Text], n: int, what: str) -> None:
    if n > 0:
        lines.append(Text(f"and {plural(n, f'more {what}')}", style="dim"))


def _next(shown_as: str, summary: RunSummary) -> Group:
    run = clean(shown_as)
    kind = "param_grad" if any(k["kind"] == "param_grad" for k in summary["kinds"]) else "output"
    question = f"select step, name, rms from stats where kind = '{kind}' order by rms desc limit 10"
    commands = [
        f'sonde query {run} "{question}"',
        f"sonde export {run} --to stats.parquet",
        f"python -c \"import sonde; print(sonde.open('{run}').stats())\"",
    ]
    return Group(*(Text(command, style="cyan", overflow="fold") for command in commands))


def _table(*columns: str) -> Table:
    """Columns as heading, alignment, heading, alignment, ..."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="dim", show_edge=False)
    for heading, alignment in zip(columns[::2], columns[1::2], strict=True):
        table.add_column(
            heading,
            justify="right" if alignment == ">" else "left",
            no_wrap=True,
            overflow="ellipsis",
        )
    return table


def _without_kind(name: str, kind: str) -> str:
    """`h.3.mlp` for `h.3.mlp/output/0`, `fc.weight` for `fc/param/weight`."""
    module, _, slot = name.partition(f"/{kind}/")
    module = "the root" if module == "." else module
    return module if slot in {"", "0"} else f"{module}.{slot}"


def _value(value: float | None) -> str:
    if value is None:
        return "–"
    return number(value) if math.isfinite(value) else str(value)


def _is_finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _percent(share: float | None) -> str:
    if share is None or math.isnan(share):
        return "–"
    return "0" if share == 0 else f"{100 * share:.1f} %"


def _short(value: object, limit: int = 60) -> str:
    if isinstance(value, list) and all(isinstance(v, str) for v in value):
        value = " ".join(value)
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
