"""Changes of state, newest first."""

from __future__ import annotations

from batch_emulator.domain.account import Event
from batch_emulator.page.layout import PageRequest, PageView, choice, filters, table, text_field
from batch_emulator.page.markup import Child, badge, el, join, moment, url

_OF_A_PAGE = 200
_KINDS = (
    "node.state", "node.notice", "node.evict", "task.state", "subtask.state", "job.state",
    "schedule.state", "pool.allocation", "pool.autoscale",
)  # fmt: skip
_STATES = frozenset({*_KINDS} - {"node.notice", "node.evict", "pool.autoscale"})


async def events(ask: PageRequest) -> PageView:
    """Return the newest events that pass the filters."""
    kept = ask.emulator.account.events
    before = ask.number("before", kept.newest + 1)
    kind, text = ask.query.get("kind", ""), ask.query.get("about", "").lower()
    found: list[Event] = []
    for event in kept.newest_first():
        if event.number < before and (not kind or event.kind == kind):
            if not text or text in f"{event.entity} {event.node}".lower():
                found.append(event)
            if len(found) > _OF_A_PAGE:
                break
    rows = [
        (
            moment(event.time, date=False),
            event.kind,
            _entity(event),
            badge(event.value) if event.kind in _STATES else el("code", event.value, class_="path"),
            event.why,
            _node(event.node),
        )
        for event in found[:_OF_A_PAGE]
    ]
    more = None
    if len(found) > _OF_A_PAGE:
        older = url("events", **{**ask.query, "before": str(found[_OF_A_PAGE].number + 1)})
        more = el("p", el("a", "Older events", href=older, class_="button"))
    options = [("", "every kind"), *((each, each) for each in _KINDS)]
    form = filters(
        url("events"),
        choice("Kind", "kind", options, kind),
        text_field("About", "about", ask.query.get("about", "")),
    )
    nothing = "Nothing has changed since the emulator started."
    if kind or text:
        nothing = "No event passes these filters."
    columns = ("Time", "Kind", "About", "Value", "Why", "Node")
    return PageView("Events", join([form, table("Events", columns, rows, empty=nothing), more]))


def _entity(event: Event) -> Child:
    first, _, rest = event.entity.partition("/")
    subject = event.kind.partition(".")[0]
    if subject == "node":
        return el("a", event.entity, href=url("nodes", first, rest))
    if subject in {"task", "subtask"}:
        return el("a", event.entity, href=url("jobs", first, "tasks", rest.partition("/")[0]))
    section = {"job": "jobs", "schedule": "schedules", "pool": "pools"}[subject]
    return el("a", event.entity, href=url(section, event.entity))


def _node(place: str) -> Child:
    pool, _, node = place.partition("/")
    return el("a", node, href=url("nodes", pool, node)) if node else ""
