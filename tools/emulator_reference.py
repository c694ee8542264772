"""The tables of the emulator's README; `python -m tools.emulator_reference` rewrites them."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from batch_emulator.domain.fault_rules import KEYS_OF, RULE_KEYS, FaultKind
from batch_emulator.http.routes.admin import ADMIN_ROUTES
from batch_emulator.options import parser

PAGE = Path(__file__).parents[1] / "batch_emulator" / "README.md"


def page(text: str) -> str:
    """Return the text with the table between each pair of marks replaced."""
    for name, table in (("options", _options()), ("admin", _admin()), ("faults", _faults())):
        start, end = f"<!-- {name}: make schema -->", f"<!-- end of {name} -->"
        pattern = re.compile(f"{re.escape(start)}.*?{re.escape(end)}", re.DOTALL)
        new = f"{start}\n{table}\n{end}"
        text, found = pattern.subn(lambda _, new=new: new, text)
        if found != 1:
            raise ValueError(f"the page has {found} places for the table of {name}")
    return text


def _options() -> str:
    lines = ["| option | default | |", "|---|---|---|"]
    for group in parser()._action_groups:
        for action in group._group_actions:  # pyright: ignore[reportPrivateUsage]
            if isinstance(action, argparse._HelpAction | argparse._VersionAction):  # pyright: ignore[reportPrivateUsage]
                continue
            lines.append(f"| {_usage(action)} | {_default(action)} | {action.help or ''} |")
    return "\n".join(lines)


def _usage(action: argparse.Action) -> str:
    name = action.option_strings[-1]
    if action.choices is not None:
        return f"`{name}` " + ", ".join(f"`{choice}`" for choice in action.choices)
    value = action.metavar or action.dest.upper()
    return f"`{name}`" if action.nargs == 0 else f"`{name} {value}`"


def _default(action: argparse.Action) -> str:
    if action.required:
        return "required"
    if action.default in (None, [], (), False):
        return ""
    return f"{action.default:g}" if isinstance(action.default, float) else str(action.default)


def _admin() -> str:
    lines = ["| request | |", "|---|---|"]
    lines += [
        f"| `{route.method} {route.path}` | {route.summary} |"
        for route in sorted(ADMIN_ROUTES, key=lambda route: (route.path, route.method))
    ]
    return "\n".join(lines)


def _faults() -> str:
    lines = ["| key | of | |", "|---|---|---|"]
    for name, key in RULE_KEYS.items():
        kinds = [kind.value for kind in FaultKind if name in KEYS_OF[kind]]
        missing = [kind.value for kind in FaultKind if kind not in kinds]
        few = f"all but {', '.join(missing)}" if len(missing) < len(kinds) else ", ".join(kinds)
        lines.append(f"| `{name}` | {few if missing else 'all'} | {key.help} |")
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
