"""Start a run or a sweep: choose a recipe, fill in what it declares, and see the plan first."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from runner.core.recipe.options import OPTIONS
from runner.core.units import format_size
from runner.flows.environment.pools import pool_names
from runner.page.ask import Ask, WebPage
from runner.page.commands import fill_form
from runner.page.folder_actions import find_task_files
from runner.page.forms import Values, to_values
from runner.page.processes import CommandAnswer, ErrorDocument, is_object
from runner.page.rest import Endpoint
from runner.page.training import (
    SWEEP,
    TRAIN,
    FoundRecipe,
    find_recipes,
    load_allowed,
    plan_action,
    train_form,
)
from runner.protocol.errors import RunnerError
from runner.protocol.host import format_usd
from runner.views.recipes import ParamLine, RecipeLine, ShownRecipe, param_line, shown_recipe

_OWN = ("plan", "only", "kind")  # names of the query that are no values of the form


@dataclass(frozen=True, slots=True)
class ShownPlan:
    """What a dry run says: facts by label, or an error; `notes` are its messages."""

    facts: tuple[tuple[str, str], ...] = ()
    error: ErrorDocument | None = None
    notes: str = ""


def _kind(cost: dict[str, Any], name: str) -> str:
    kind: dict[str, Any] = cost[name]
    if kind["usd_per_hour"] is None:
        return "unknown, because the price table has no price of the VM size"
    expected = kind["expected_micros"]
    most = kind["worst_micros"]
    parts = ["no `estimate`" if expected is None else f"{format_usd(expected)} expected"]
    parts.append("no limit" if most is None else f"at most {format_usd(most)}")
    return f"{', '.join(parts)} ({kind['usd_per_hour']:g} USD per node and hour, {kind['as_of']})"


def to_plan(found: CommandAnswer, *, is_billed: bool) -> ShownPlan:
    """Return the plan of a dry run: of a run, or of the trials of a sweep."""
    if found.error is not None:
        return ShownPlan(error=found.error, notes=found.messages)
    document: dict[str, Any] = found.document
    runs: dict[str, dict[str, Any]] = document.get("runs") or {}
    run = next(iter(runs.values()), document)
    batch, code = _part(run, "batch"), _part(run, "code")
    size = f" ({batch.get('vm_size')})" if batch.get("vm_size") else ""
    spot = ", spot" if batch.get("spot") else ""
    facts = [
        ("Trials", str(len(runs)) if runs else ""),
        ("Pool", f"{batch.get('pool')}{size}{spot}"),
        ("Job", str(batch.get("job_id") or "")),
        ("Command", shlex.join(map(str, run.get("command") or ()))),
        ("Code", f"{format_size(code.get('size_bytes') or 0)}, sha256 {_short(code)}"),
        ("Data", str(_part(run, "data").get("name") or "")),
        ("Packages", str(_part(run, "requirements").get("file") or "")),
    ]
    cost = document.get("cost")
    if cost:
        facts += [("Price on spot", _kind(cost, "spot"))]
        facts += [("Price on dedicated", _kind(cost, "dedicated"))]
        facts += [("Cost cap", format_usd(cost["cap"]["cap_micros"]))] if cost["cap"] else []
    elif not is_billed:
        facts.append(("Price", "nothing: it runs on this machine"))
    unknown = document.get("not_looked_up")
    if unknown:
        facts.append(("Not checked", ", ".join(map(str, unknown))))
    return ShownPlan(tuple(each for each in facts if each[1]), notes=found.messages)


def _part(run: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found: Any = run.get(name)
    return found if is_object(found) else {}


def _short(code: Mapping[str, Any]) -> str:
    return str(code.get("sha256"))[:12]


async def read(ask: Ask) -> dict[str, Any]:
    """Return the values of `new.html`: all recipes, or the form of one."""
    ref = ask.text("recipe")
    if not ref:
        files = await ask.source.work(partial(find_task_files, Path.cwd()))
        return {
            "title": "Train", "found": await _recipes(ask), "task_files": files, "recipe": None,
        }  # fmt: skip
    is_sweep = ask.text("kind") == "sweep"
    action = SWEEP if is_sweep else TRAIN
    folder, pools = Path.cwd(), list[str]()
    recipe = await ask.source.work(lambda: load_allowed(ref, folder))
    with suppress(RunnerError):
        pools = await ask.source.work(lambda: list(pool_names(ask.source.settings)))
    pairs = ask.query.multi_items()
    values = to_values((name, text) for name, text in pairs if name not in _OWN)
    shown = await fill_form(ask.source, action, values)
    plan = None
    if ask.text("plan") and not shown["problem"]:
        plan = await _plan(ask, values, is_sweep=is_sweep)
    return {
        **shown,
        "title": f"{'Sweep' if is_sweep else 'Train'} {ref}",
        "ref": ref,
        "base": ref.partition(":")[0] if recipe.source == "builtin" else ref,
        "recipe": recipe,
        "form": train_form(recipe, sweep=is_sweep, pools=pools),
        "plan": plan,
        "kind": "sweep" if is_sweep else "",
    }


async def _plan(ask: Ask, values: Values, *, is_sweep: bool) -> ShownPlan:
    found = await _answer(ask, values, is_sweep=is_sweep)
    return to_plan(found, is_billed=ask.source.settings.target.is_billed)


async def _answer(ask: Ask, values: Values, *, is_sweep: bool) -> CommandAnswer:
    action = plan_action(SWEEP if is_sweep else TRAIN)
    return await ask.source.processes.answer(action.argv(values))


async def _recipes(ask: Ask) -> list[FoundRecipe]:
    find: Callable[[], list[FoundRecipe]] = partial(find_recipes, Path.cwd())
    return await ask.source.work(find)


async def read_documents(ask: Ask) -> list[RecipeLine]:
    """Return the recipes that the page can start."""
    return [
        {
            "recipe": each.ref,
            "description": each.description,
            "toolkit": each.toolkit,
            "dataset": each.dataset,
            "estimate": each.takes,
            "expected": each.expected,
            "variants": list(each.variants),
            "builtin": each.is_builtin,
            "problem": each.problem,
        }
        for each in await _recipes(ask)
    ]


async def read_plan(ask: Ask) -> dict[str, Any]:
    """Return the plan of a run or a sweep. Raise RunnerError if it would not start."""
    pairs = ask.query.multi_items()
    values = to_values((name, text) for name, text in pairs if name not in _OWN)
    await ask.source.work(partial(TRAIN.prepare, values))
    return (await _answer(ask, values, is_sweep=ask.text("kind") == "sweep")).checked()


async def read_document(ask: Ask) -> ShownRecipe:
    """Return one recipe with its variants."""
    ref = ask.text("recipe")

    def load() -> ShownRecipe:
        recipe = load_allowed(ref, Path.cwd())
        variants = {name: load_allowed(f"{ref}:{name}", Path.cwd()) for name in recipe.variants}
        return shown_recipe(recipe, variants)

    return await ask.source.work(load)


async def read_params(ask: Ask) -> list[ParamLine]:
    """Return the parameters that a recipe declares."""
    ref = ask.text("recipe")
    recipe = await ask.source.work(lambda: load_allowed(ref, Path.cwd()))
    return [param_line(each) for each in recipe.params]


async def read_task_files(_: Ask) -> list[str]:
    """Return the files with several tasks in the folder of the server."""
    return find_task_files(Path.cwd())


_RECIPE = (("recipe", "name of a built-in recipe, or a path below the folder of the server"),)
ENDPOINTS = (
    Endpoint(
        "/recipes",
        "List the recipes and scripts in the folder of the server, then the built-in recipes.",
        list[RecipeLine],
        read_documents,
    ),
    Endpoint(
        "/recipe",
        "Return a recipe with its parameters and variants.",
        ShownRecipe,
        read_document,
        _RECIPE,
        "runner recipe show RECIPE",
    ),
    Endpoint(
        "/recipe/params",
        "List the parameters that a recipe declares, with their types and limits.",
        list[ParamLine],
        read_params,
        _RECIPE,
    ),
    Endpoint(
        "/task-files",
        "List the files with several tasks in the folder of the server.",
        list[str],
        read_task_files,
    ),
    Endpoint(
        "/plan",
        "Return the plan and the price of a run or a sweep, without starting it.",
        dict[str, Any],
        read_plan,
        (
            *_RECIPE,
            ("kind", "sweep for a sweep"),
            *((name, OPTIONS[name].help) for name in TRAIN.options if name in OPTIONS),
        ),
        "runner train RECIPE --dry-run",
    ),
)
PAGE = WebPage("/new", "new", read, every_s=0, label="Train")
