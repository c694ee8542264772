"""The clock and rules for faults, and the page on which an action is confirmed and carried out."""

from __future__ import annotations

from collections.abc import Mapping

from batch_emulator.domain.clock import wall_now
from batch_emulator.domain.faults import FAULTS
from batch_emulator.http.routes.table import ROUTES
from batch_emulator.page import actions
from batch_emulator.page.actions import ACTIONS, ActionField, PageAction
from batch_emulator.page.api_client import ApiError
from batch_emulator.page.layout import (
    PageRequest,
    PageView,
    buttons,
    choice,
    command,
    duration_text,
    facts,
    section,
    table,
    text_field,
)
from batch_emulator.page.markup import Markup, el, join, moment

_LEAST_FAULT = 400


async def control(ask: PageRequest) -> PageView:
    """Return the clock, rules for faults, and what ends everything."""
    emulator = ask.emulator
    now = emulator.clock.now()
    ahead_s = (now - wall_now()).total_seconds()
    timers = emulator.account.timers
    due = timers[0][0] if timers else None
    health = await ask.client.read_admin("health")
    clock = facts(
        [
            ("Time of the emulator", moment(now)),
            ("Ahead of this machine", duration_text(ahead_s) if ahead_s >= 1 else "no"),
            ("Seconds per second", f"{emulator.clock.scale:g}"),
            ("Next timer", moment(due) if due else "none"),
        ]
    )
    emulated = facts(
        [
            ("Account", emulator.settings.account),
            ("Endpoint", el("code", emulator.settings.url)),
            ("Version", str(health["version"])),
            ("Running for", duration_text(float(health["uptime"]))),
            ("Isolation of tasks", str(health["isolation"]["mode"])),
            ("No new work", health.get("reason")),
        ]
    )
    content = [
        section("Clock", clock, buttons(actions.link(ask, "push-clock"))),
        section("Rules for faults", await _faults(ask)),
        section("Emulator", emulated, buttons(actions.link(ask, "reset"))),
    ]
    return PageView("Clock and faults", join(content), is_moving=True)


async def _faults(ask: PageRequest) -> Markup:
    rules = (await ask.client.read_admin("faults"))["value"]
    rows = [
        (
            str(each["name"]),
            str(each["fault"]),
            str(each.get("operation") or each.get("quota") or each.get("pool", "*")),
            str(each.get("count", "no limit")),
            str(each["hits"]),
            str(each.get("code", "")),
            str(each.get("status", "")),
            f"{each.get('delaySeconds', 0):g}",
        )
        for each in rules
    ]
    columns = ("Rule", "Fault", "Of", "Left#", "Hits#", "Error", "Status#", "Delay in s#")
    text = "There are no rules. The next requests of an operation can get an error or a delay."
    return join(
        [
            table("Rules for faults", columns, rows, empty=text),
            buttons(
                actions.link(ask, "plan-fault"),
                actions.link(ask, "forget-faults") if rules else None,
            ),
        ]
    )


async def acting(ask: PageRequest) -> PageView:
    """Return the form of an action, with the request and the command that do the same."""
    return _form(ask, ask.query)


async def act(ask: PageRequest, given: Mapping[str, str]) -> PageView | None:
    """Carry out an action; return None when it was accepted, else the form with what is wrong."""
    action = _action(ask)
    if action.loses and given.get("sure") != "yes":
        return _form(ask, given, "Confirm first what will be lost.", 400)
    try:
        body = action.body(given)
        path = action.filled_path(given)
        await ask.client.ask(action.method, path, action.query(given), body, action.headers)
    except ApiError as err:
        return _form(ask, given, f"{err.code}: {err.text}", err.status)
    except (KeyError, ValueError) as err:
        return _form(ask, given, str(err), 400)
    return None


def back_of(given: Mapping[str, str]) -> str:
    """Return the page from which an action came: an address on this page and nowhere else."""
    back = given.get("back", "/")
    is_local = back.startswith("/") and not back.startswith(("//", "/\\")) and back.isprintable()
    return back if is_local else "/"


def _action(ask: PageRequest) -> PageAction:
    name = ask.steps[0]
    if name not in ACTIONS:
        raise ApiError(404, "NotFound", f"there is no action {name}")
    return ACTIONS[name]


def _form(
    ask: PageRequest, given: Mapping[str, str], wrong: str = "", status: int = 200
) -> PageView:
    action = _action(ask)
    try:
        text = action.request_text(given)
        same = action.command(given, ask.emulator.settings)
    except (KeyError, ValueError) as err:
        text, same, wrong = "", "", wrong or f"invalid value: {err}"
    subject = " ".join(given[name] for name in action.names if name in given)
    names = [*action.names, "back"]
    hidden = [el("input", type="hidden", name=n, value=given.get(n, "")) for n in names]
    sure = None
    if action.loses:
        box = el("input", type="checkbox", name="sure", value="yes", required=True)
        sure = el("p", el("strong", action.loses), el("label", box, " Go on"), class_="loses")
    shown = [
        el("p", wrong, class_="wrong", role="alert") if wrong else None,
        el(
            "div",
            el("p", "The same on the command line:"),
            command(same),
            el("p", "The request:"),
            command(text),
            id="command",
        ),
        sure,
        el(
            "p",
            el("button", action.title, type="submit", formmethod="post", class_="go"),
            el("button", "Update the command", type="submit", formmethod="get", formnovalidate=True,
               class_="update"),
            el("a", "Cancel", href=back_of(given), class_="button"),
            class_="actions",
        ),
    ]  # fmt: skip
    fields = [_field(each, given.get(each.name, each.default)) for each in action.fields]
    form = el(
        "form", hidden, el("div", fields, class_="fields"), shown, data_live=True, method="post"
    )
    title = f"{action.title}: {subject}" if subject else action.title
    return PageView(title, form, (("Back", back_of(given)),), status=status)


def _field(field: ActionField, value: str) -> Markup:
    if field.options:
        return choice(field.label, field.name, [(each, each) for each in field.options], value)
    if field.kind == "lines":
        area = el("textarea", value, name=field.name, rows="6", spellcheck="false")
        return el("label", el("span", field.label), area)
    known: tuple[str, ...] = ()
    if field.name == "operation":
        known = tuple(route.operation for route in ROUTES if route.handler is not None)
    elif field.name == "code" and field.default == "ServerBusy":
        known = tuple(code for code, (status, _) in FAULTS.items() if status >= _LEAST_FAULT)
    if not known:
        more = {"inputmode": "decimal"} if field.kind == "number" else {}
        return text_field(field.label, field.name, value, **more)
    options = [el("option", value=each) for each in known]
    suggested = el("datalist", options, id=f"known-{field.name}")
    entry = text_field(field.label, field.name, value, list=f"known-{field.name}")
    return join([entry, suggested])
