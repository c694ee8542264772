"""The what-if simulator: `runner cost whatif` with the values of a form.

It runs as a process: a simulation would stop every page of the server for seconds.
"""

from __future__ import annotations

import base64
import json
import shlex
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from runner.azure.auth.credentials import Connection
from runner.core.curves import Curve
from runner.core.settings import Settings
from runner.flows.child_python import command_of
from runner.page.ask import Ask, WebPage
from runner.page.pages.spending import Prices, price_choices
from runner.page.rest import Endpoint
from runner.protocol.errors import RunnerError
from runner.views.costs import WhatIfDocument

_TIMEOUT_S = 60
_FRESH_S = 600.0
_MOST_SIZES = 4
# The picture is one for files: in an `img`, it has colours of its own.
_DARK = (
    b"<style>@media (prefers-color-scheme: dark) { svg > rect { fill: #14171a } "
    b"text { fill: #e6e9ec } line[stroke='#dddddd'] { stroke: #363c44 } "
    b"[stroke='#000000'] { stroke: #e6e9ec } [fill='#000000'] { fill: #e6e9ec } }</style>"
)
POLICIES = {
    "on-demand": "dedicated nodes",
    "spot": "spot nodes only, without a promise of the deadline",
    "fallback": "a dedicated node for each missing spot node",
    "greedy": "spot nodes as long as the deadline allows",
    "uniform": "Uniform Progress of “Can't Be Late”, NSDI 2024",
    "forecast": "dedicated nodes for the expected shortfall of spot nodes",
}


@dataclass(frozen=True, slots=True)
class WhatIfField:
    """A field of the form, and the option that has its value."""

    name: str
    label: str
    default: str = ""
    placeholder: str = ""
    low: int | None = None
    high: int | None = None


FIELDS = (
    WhatIfField("tasks", "Tasks", "100", low=1, high=5000),
    WhatIfField("duration", "Time of a task", "30m", "30m, 20m-1h"),
    WhatIfField("nodes", "Nodes at most", "10", low=1, high=1000),
    WhatIfField("slots", "Slots of a node", "", "1", low=1, high=256),
    WhatIfField("deadline", "Deadline", "", "12h"),
    WhatIfField("mtbf", "A node is evicted every", "", "never"),
    WhatIfField("away", "An evicted node returns after", "", "0s"),
    WhatIfField("checkpoint", "Checkpoint every", "", "never"),
    WhatIfField("save", "A checkpoint takes", "", "0s"),
    WhatIfField("setup", "Set-up of an attempt", "", "0s"),
    WhatIfField("boot", "Boot of a node", "", "4m"),
    WhatIfField("seeds", "Simulations", "3", low=1, high=10),
)


def to_words(ask: Ask) -> list[str]:
    """Return the words of the command. Raise RunnerError if a number is out of range."""
    words = ["cost", "whatif"]
    for each in FIELDS:
        if each.low is not None and each.high is not None and ask.text(each.name):
            ask.number(each.name, 0, low=each.low, high=each.high)
        value = ask.text(each.name, each.default)
        if value:
            words.append(f"--{each.name}={value}")
    words += [f"--{name}={ask.text(name)}" for name in ("pool", "run") if ask.text(name)]
    words += [f"--vm-size={size}" for size in ask.text("vm_size").split()[:_MOST_SIZES]]
    if ask.text("region"):
        words.append(f"--region={ask.text('region')}")
    return words


def run_command(words: Sequence[str], settings: Settings) -> tuple[WhatIfDocument, bytes]:
    """Return the document and the picture of a simulation. Raise RunnerError if it fails."""
    target = ["--target", settings.target.name]
    if settings.target.has_stacks:
        target += ["--stack", settings.stack]
        target += ["--team", settings.team] if settings.team else []
    with tempfile.TemporaryDirectory() as folder:
        picture = Path(folder, "picture.svg")
        argv = command_of("runner", *words, *target, "-o", "json", "--plot", str(picture))
        try:
            done = subprocess.run(
                argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=_TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired as err:
            raise RunnerError(
                "R-PAGE-QUERY",
                f"the simulation took more than {_TIMEOUT_S} s",
                fix="use fewer tasks, nodes or simulations",
            ) from err
        content = picture.read_bytes() if picture.is_file() else b""
    document = _parse(done.stdout)
    if done.returncode != 0 or "options" not in document:
        raise _failed(document, done.stderr)
    return cast("WhatIfDocument", document), content


def _parse(output: bytes) -> dict[str, Any]:
    try:
        found = json.loads(output)
    except ValueError:
        return {}
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _failed(document: Mapping[str, Any], stderr: bytes) -> RunnerError:
    error: Mapping[str, Any] = document.get("error") or {}
    said = stderr.decode("utf-8", "replace").strip().splitlines()
    return RunnerError(
        "R-PAGE-QUERY",
        str(error.get("what") or "the simulation failed"),
        why=str(error.get("why") or (said[-1] if said else "")),
        fix="change a value of the form",
    )


async def simulate(ask: Ask) -> tuple[WhatIfDocument, bytes]:
    """Return the document and the picture for the values of the address."""
    words, settings = to_words(ask), ask.source.settings

    def run(_: Connection) -> tuple[WhatIfDocument, bytes]:
        return run_command(words, settings)

    key, patience_s = ("whatif", *words), _TIMEOUT_S + 10
    return await ask.source.read(key, run, fresh_s=_FRESH_S, patience_s=patience_s)


def to_frontier(document: WhatIfDocument) -> list[Curve]:
    """Return the cost by deadline in minutes, one curve for each policy; late ones leave a gap."""
    curves: list[Curve] = []
    for name in POLICIES:
        points = [
            (round(each["deadline_s"] / 60), (each[name]["cost_micro_usd"] or 0) / 1e6)
            for each in document["frontier"]
            if name in each and not each[name]["late"] and each[name]["cost_micro_usd"] is not None
        ]
        curves.append(Curve(name, "USD", tuple(points)))
    return curves


def with_dark(picture: bytes) -> bytes:
    """Return an SVG document with other colours on dark pages."""
    head, end, rest = picture.partition(b">\n")
    return head + end + _DARK + rest if end else picture


async def read(ask: Ask) -> dict[str, Any]:
    """Return the values of `whatif.html`: a form, and the results once it was sent."""
    settings = ask.source.settings
    found: WhatIfDocument | None = None
    picture, problem = b"", None
    command = ""
    try:
        command = shlex.join(["runner", *to_words(ask)])
        if ask.text("go"):
            found, picture = await simulate(ask)
    except RunnerError as err:
        if err.code != "R-PAGE-QUERY":
            raise
        problem = err
    values = {each.name: ask.text(each.name, each.default) for each in FIELDS}
    values |= {name: ask.text(name) for name in ("vm_size", "region", "pool", "run")}
    return {
        "title": "What if",
        "fields": FIELDS,
        "values": values,
        "policies": POLICIES,
        "found": found,
        "frontier": to_frontier(found) if found else [],
        "picture": base64.b64encode(with_dark(picture)).decode(),
        "problem": problem,
        "command": command,
        **price_choices(settings, Prices()),
    }


async def read_document(ask: Ask) -> WhatIfDocument:
    """Return the comparison of policies."""
    document, _ = await simulate(ask)
    return document


_QUERY = (
    *((each.name, each.label) for each in FIELDS),
    ("vm_size", "VM sizes, separated by spaces; SIZE=SPEED has a relative speed"),
    ("region", "region of the prices"),
    ("pool", "formula, slots and VM size of this pool"),
    ("run", "save time and evictions of this run"),
)
ENDPOINTS = (
    Endpoint(
        "/whatif", "Simulate the costs of tasks with other sizes and policies.",
        WhatIfDocument, read_document, _QUERY, "runner cost whatif",
    ),
)  # fmt: skip
PAGE = WebPage("/bill/whatif", "whatif", read, every_s=0)
