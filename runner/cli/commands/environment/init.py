"""`runner init`: ask for the settings of a stack, write its files, and check them."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from runner.cli.commands.environment.deploy import (
    check_rows,
    cost_documents,
    run_stack_checks,
    show_checks,
)
from runner.cli.commands.environment.share import (
    CiOption,
    RepositoryOption,
    SecretsOption,
    StateOption,
    extend_project,
    read_options,
    show_next,
)
from runner.cli.options import StackOption, open_settings
from runner.cli.ui.output import Output, OutputFormat, OutputOption
from runner.cli.ui.terminal import is_terminal
from runner.protocol.errors import ExitCode, RunnerError

if TYPE_CHECKING:
    from runner.core.settings import Settings
    from runner.flows.environment.first_files import (
        Answers,
        ListedAccount,
        ListedSubscription,
        Question,
    )
    from runner.flows.environment.plan import Plan


class _Known(NamedTuple):
    """The lists that `az` prints; `why` is the reason if it lists no subscriptions."""

    subscriptions: Sequence[ListedSubscription]
    why: str
    locations: Collection[str]
    accounts: Mapping[str, Sequence[ListedAccount]]  # by field of `Answers`


_OPTIONS = {"batch_account": "--adopt"}
_FIXES = {"budget": "use 0 for no budget, or a positive number"}


def init(
    stack: StackOption = None,
    subscription: Annotated[
        str | None, typer.Option(help="Subscription: its ID, or its name in `az account list`.")
    ] = None,
    adopt: Annotated[
        str | None, typer.Option(help="Batch account to use instead of a new one: its name or ID.")
    ] = None,
    storage_account: Annotated[
        str | None,
        typer.Option(
            help="Storage account to use: its name or ID, or `new`.",
            show_default="the one linked to the account of --adopt",
        ),
    ] = None,
    resource_group: Annotated[
        str | None, typer.Option(help="Resource group to use instead of a new one.")
    ] = None,
    location: Annotated[str | None, typer.Option(help="Region, such as eastus.")] = None,
    vm_size: Annotated[str | None, typer.Option(help="VM size of the spot nodes.")] = None,
    max_nodes: Annotated[str | None, typer.Option(help="Maximum number of spot nodes.")] = None,
    budget: Annotated[str | None, typer.Option(help="Budget in USD per month; 0 for none.")] = None,
    email: Annotated[str | None, typer.Option(help="Address for the budget's e-mails.")] = None,
    state: StateOption = None,
    secrets: SecretsOption = None,
    ci: CiOption = None,
    repository: RepositoryOption = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace an existing Pulumi.STACK.yaml or workflow.")
    ] = False,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Do not ask; use the defaults.")] = False,
    check: Annotated[bool, typer.Option(help="Run `runner check` afterwards.")] = True,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Ask for the settings of an Azure environment and write its files; create nothing in Azure.

    Without a terminal, it does not ask: it uses the options and the defaults. With --state,
    --secrets or --ci, an existing Pulumi.STACK.yaml keeps its other settings.
    """
    given = {
        "subscription": subscription,
        "batch_account": adopt,
        "storage_account": storage_account,
        "resource_group": resource_group,
        "location": location,
        "vm_size": vm_size,
        "max_nodes": max_nodes,
        "budget": budget,
        "email": email,
    }
    out = Output(output)
    settings = open_settings("azure", stack)
    shared, folder = None, Path.cwd()
    if state or secrets or ci:
        from runner.flows.environment.first_files import project_folder, stack_file

        folder = project_folder(folder)
        shared = read_options(
            folder, force=force, state=state, secrets=secrets, ci=ci, repository=repository
        )
        if stack_file(folder, settings.stack).exists() and not any(given.values()):
            changed = extend_project(out, settings, shared, folder)
            if not out.as_text:
                out.record({"files": [str(path) for path in changed]})
                return
            show_next(out, settings, shared, folder)
            return
    asking = not yes and is_terminal(sys.stdin)
    try:
        answers, plan, written = _ask_and_write(out, settings, given, asking=asking, force=force)
    except (KeyboardInterrupt, typer.Abort):
        out.note("\ninterrupted: no file was written")
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    used = replace(settings, stack=answers.stack)
    if shared is not None:
        added = extend_project(out, used, shared, folder)
        written = [*written, *(path for path in added if path not in written)]
    if not out.as_text:
        found = run_stack_checks(out, used, written[0].parent) if check else ()
        made = {"files": [str(path) for path in written], **asdict(answers)}
        out.record({**made, "pools": cost_documents(plan.costs), "checks": check_rows(found)})
        return
    for path in written:
        out.note(f"wrote {path}")
    for pool in plan.pools:
        if pool.machine.note:
            newer = f"consider {pool.machine.successor}"
            out.note(f"{pool.machine.vm_size}: {pool.machine.note}; {newer}", style="yellow")
    found = show_checks(out, used, written[0].parent) if check else ()
    if failed := [each.name for each in found if each.state == "failed"]:
        out.note(f"correct this before `runner up`: {', '.join(failed)}", style="yellow")
    if shared is not None:
        show_next(out, used, shared, folder)
        return
    _show_next(out, settings, answers, written)


def _ask_and_write(
    out: Output,
    settings: Settings,
    given: Mapping[str, str | None],
    *,
    asking: bool,
    force: bool,
) -> tuple[Answers, Plan, Sequence[Path]]:
    from runner.core.azure.clouds import sign_in_step
    from runner.flows.environment import first_files

    folder = first_files.project_folder(Path.cwd())
    stack = _choose_stack(out, settings, folder, asking=asking, force=force)
    subscriptions, why = first_files.load_subscriptions(os.environ)
    answers = first_files.default_answers(settings, subscriptions, os.environ)
    answers = replace(answers, stack=stack)
    known = _Known(subscriptions, why, (), {})
    for question in first_files.load_questions():
        text = given[question.field]
        if question.field == "email" and answers.budget == "0":
            continue
        if accounts := _accounts(question.field, answers, text, asking=asking):
            known = known._replace(accounts={**known.accounts, question.field: accounts})
        if text is not None:
            answers = _with_answer(answers, question.field, text, known)
            _accept(answers, settings, question.field, known.locations)
        elif asking and _is_asked(question.field, answers, known):
            answers = _ask(out, settings, answers, question, known)
        if question.field == "subscription" and subscriptions:
            found = first_files.load_locations(answers.subscription, os.environ)
            known = known._replace(locations=found)
    if not (asking or answers.subscription):
        raise RunnerError(
            "R-INIT-SUBSCRIPTION",
            "the subscription is missing",
            why=f"no --subscription was given, and {why}",
            fix=f"add --subscription ID, or {sign_in_step(os.environ)} first",
        )
    if answers.budget in ("", "0"):
        answers = replace(answers, email="")  # only a budget uses it
    plan = first_files.plan_answers(answers, settings, os.environ)
    return answers, plan, first_files.write_files(answers, folder)


def _accounts(
    field: str, answers: Answers, text: str | None, *, asking: bool
) -> Sequence[ListedAccount]:
    """Return the accounts that a question offers, or that the text of an option may name."""
    from runner.flows.environment.first_files import load_accounts

    if not answers.subscription:
        return ()
    if field == "batch_account" and (asking or text):
        return load_accounts("batch", answers.subscription, os.environ)
    if field == "storage_account" and (text or (asking and answers.batch_account)):
        return load_accounts("storage", answers.subscription, os.environ)
    return ()


def _is_asked(field: str, answers: Answers, known: _Known) -> bool:
    """Return False for a question that earlier answers decide."""
    if field == "batch_account":
        return field in known.accounts
    if field in ("storage_account", "resource_group"):
        return bool(answers.batch_account)
    listed = known.accounts.get("batch_account", ())
    return field != "location" or not any(each.id == answers.batch_account for each in listed)


def _choose_stack(
    out: Output, settings: Settings, folder: Path, *, asking: bool, force: bool
) -> str:
    """Return the name of a stack whose file does not exist or may be replaced."""
    from runner.flows.environment.first_files import stack_file

    stack = settings.stack
    while not force and (file := stack_file(folder, stack)).exists():
        if not asking:
            raise RunnerError(
                "R-INIT-EXISTS",
                f"{file} exists",
                why="without a terminal, an existing file is not replaced",
                fix="add --force to replace it, or --stack NAME for another stack",
            )
        out.note(f"{file} exists.")
        if out.confirm("Replace it?"):
            break
        stack = _ask_stack(out, f"{stack}-2")
    return stack


def _ask_stack(out: Output, default: str) -> str:
    """Ask for the name of a stack until the answer is valid."""
    while True:
        try:
            return open_settings("azure", out.ask("Name of another stack", default)).stack
        except RunnerError as err:
            out.note(f"  {err.why}; {err.fix}", style="red")


def _subscription_lines(subscriptions: Sequence[ListedSubscription], why: str) -> Sequence[str]:
    if not subscriptions:
        return (f"{why}: type an ID, or press Enter to set ARM_SUBSCRIPTION_ID later",)
    return [
        f"{number}  {each.name}  {each.id}{'  (current)' if each.current else ''}"
        for number, each in enumerate(subscriptions, 1)
    ]


def _with_answer(answers: Answers, field: str, text: str, known: _Known) -> Answers:
    from runner.core.pricing.machines import region_name
    from runner.flows.environment import first_files

    text = text.strip()
    if field == "subscription":
        text = first_files.find_subscription(text, known.subscriptions)
    elif field in ("batch_account", "storage_account"):
        accounts = known.accounts.get(field, ())
        text = first_files.find_account(text, _option(field), accounts)
    elif field == "resource_group" and text == first_files.NEW:
        text = ""
    elif field == "location":
        text = region_name(text)
    answers = replace(answers, **{field: text})
    if field == "batch_account":
        return first_files.adopt_account(answers, known.accounts.get(field, ()))
    return answers


def _option(field: str) -> str:
    return _OPTIONS.get(field, f"--{field.replace('_', '-')}")


def _accept(answers: Answers, settings: Settings, field: str, locations: Collection[str]) -> None:
    """Raise RunnerError if the files with these answers would be invalid."""
    from runner.flows.environment.first_files import check_location, plan_answers

    try:
        if field == "location":
            check_location(answers.location, locations)
        plan_answers(answers, settings, os.environ)
    except RunnerError as err:
        option = _option(field)
        why, fix = err.why or err.what, err.fix
        if "correct line" in fix:
            fix = f"use another {option}"
        if not err.why and "max_spot" in fix:
            why, fix = "the pool could have no nodes", "use 1 or more"
        raise RunnerError(
            "R-INIT-VALUE",
            f"invalid {option} {getattr(answers, field)!r}",
            why="" if field in _FIXES or why.startswith("YAML") else why,
            fix=_FIXES.get(field, fix),
            exit_code=err.exit_code,
        ) from err


def _ask(
    out: Output,
    settings: Settings,
    answers: Answers,
    question: Question,
    known: _Known,
) -> Answers:
    """Ask a question until the answer is valid. Return the answers with it."""
    from runner.flows.environment.first_files import account_lines, region_lines, size_lines

    out.note("")
    width = min(shutil.get_terminal_size().columns, 100)
    for line in textwrap.wrap(question.explains, width):
        out.note(line, style="dim")
    lines: Sequence[str] = ()
    asks = question.asks
    if question.field == "subscription":
        asks = asks if known.subscriptions else "Subscription (ID)"
        lines = _subscription_lines(known.subscriptions, known.why)
    elif question.field == "location":
        lines = region_lines(settings)
    elif question.field == "vm_size":
        lines = size_lines(settings, answers.location)
    else:
        lines = account_lines(known.accounts.get(question.field, ()))
    for line in lines:
        out.note(f"  {line}")
    while True:
        text = out.ask(asks, getattr(answers, question.field) or question.otherwise)
        try:
            found = _with_answer(answers, question.field, text, known)
            _accept(found, settings, question.field, known.locations)
        except RunnerError as err:
            out.note("  " + "; ".join(filter(None, (err.why, err.fix))), style="red")
            continue
        return found


def _show_next(out: Output, settings: Settings, answers: Answers, written: Sequence[Path]) -> None:
    named = answers.stack != settings.stack or settings.origins["stack"] == "--stack"
    chosen = f" --stack {answers.stack}" if named else ""
    commands = [
        f"runner preview{chosen}",
        f"runner up{chosen}",
        f"runner train mnist --target azure{chosen}",
    ]
    if written[0].parent != Path.cwd():
        commands.insert(0, f"cd {written[0].parent}")
    out.panel("Next", {}, commands=commands)
