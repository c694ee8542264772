"""The first files of a stack, from answers of the user or from options."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, cast

from ruamel.yaml import YAML

from runner.core.azure.clouds import PUBLIC, cloud_of_region, find_cloud
from runner.core.home import not_writable
from runner.core.pricing.machines import REGIONS, region_name
from runner.core.pricing.prices import Price, load_price_table
from runner.core.settings import Settings
from runner.core.yaml_files import did_you_mean
from runner.flows.environment.plan import EXAMPLE, PROJECT, Plan, find_project, plan_stack
from runner.flows.environment.skus import list_skus
from runner.protocol.errors import ExitCode, RunnerError

_AZ_TIMEOUT_S = 60.0
_NUMBER = re.compile(r"\d{1,9}(\.\d{1,9})?")
_LISTED = 8
# Plain words that YAML reads as something else than text.
_YAML_WORDS = frozenset(("true", "false", "null", "yes", "no", "on", "off"))
_ID = re.compile(r"[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")
# Our suggestions, by cloud; `runner check` tells whether the VM size is available there.
_FIRST_REGIONS = {"public": "eastus", "china": "chinanorth3", "usgov": "usgovvirginia"}
NEW = "new"  # the answer for a new account or group
# Not `infra`, a name that other projects use for other programs.
_PROGRAM = "runner_stack/__main__.py"
_PROJECT_TEXT = """\
name: runner
description: Spot GPU training on Azure Batch
main: runner_stack
runtime: python
"""
# `runner up` does not need it. Plain `pulumi` starts it with the `python3` on the path.
_PROGRAM_TEXT = """\
\"\"\"The program of Pulumi.yaml, for the Pulumi CLI.\"\"\"

from pathlib import Path

from runner_infra.program import program

program(Path(__file__).parents[1])
"""


@dataclass(frozen=True, slots=True)
class Answers:
    """The values of the files as typed; an empty subscription or e-mail is omitted.

    `batch_account` and `storage_account` are IDs of accounts to adopt, `resource_group` is a name.
    If one of them is empty, the stack creates its own.
    """

    stack: str = "dev"
    subscription: str = ""
    batch_account: str = ""
    storage_account: str = ""
    resource_group: str = ""
    location: str = "eastus"
    vm_size: str = "Standard_NC4as_T4_v3"
    max_nodes: str = "4"
    budget: str = "100"
    email: str = ""


@dataclass(frozen=True, slots=True)
class Question:
    """One question about a value of `Answers`, with an explanation."""

    field: str
    asks: str
    explains: str
    otherwise: str = ""  # text for an empty value


def load_questions() -> Sequence[Question]:
    """Return the questions in their order."""
    parser: Any = YAML(typ="safe", pure=True)
    return [Question(**each) for each in parser.load(Path(__file__).with_name("questions.yaml"))]


@dataclass(frozen=True, slots=True)
class ListedSubscription:
    """A subscription of the signed-in account of `az`."""

    id: str
    name: str
    current: bool
    user: str


def load_subscriptions(env: Mapping[str, str]) -> tuple[Sequence[ListedSubscription], str]:
    """Return the enabled subscriptions of `az`, the current one first, and why the list is empty.

    `az account list` prints an empty list if no account is signed in.
    """
    found, why = _ask_az(("account", "list"), env)
    try:
        listed = _subscriptions(found)
    except (KeyError, TypeError, AttributeError) as err:
        return (), f"`az account list` printed no list of subscriptions: {err}"
    return listed, why or ("" if listed else "the Azure CLI (az) is not signed in")


def load_locations(subscription: str, env: Mapping[str, str]) -> Collection[str]:
    """Return the regions of a subscription, or nothing if `az` cannot list them."""
    words = ("account", "list-locations", "--subscription", subscription)
    found, _ = _ask_az(words, env)
    return {str(each["name"]) for each in found if "name" in each}


@dataclass(frozen=True, slots=True)
class ListedAccount:
    """A Batch or storage account in the list of `az`; `storage` is the ID of its linked storage."""

    id: str
    name: str
    location: str
    storage: str = ""

    @property
    def group(self) -> str:
        """The resource group, which is a part of the ID."""
        return self.id.split("/")[4]


def load_accounts(
    kind: Literal["batch", "storage"], subscription: str, env: Mapping[str, str]
) -> Sequence[ListedAccount]:
    """Return the accounts of a subscription, or nothing if `az` cannot list them."""
    found, _ = _ask_az((kind, "account", "list", "--subscription", subscription), env)
    listed: list[ListedAccount] = []
    for each in found:
        account = str(each.get("id"))
        linked: Any = each.get("autoStorage") or {}
        if account.count("/") == 8:  # the ID of an account in a resource group
            storage = str(linked.get("storageAccountId") or "")
            name = account.rpartition("/")[2]
            listed.append(ListedAccount(account, name, str(each.get("location")), storage))
    return listed


def resource_ids(kind: str, subscription: str, env: Mapping[str, str]) -> Mapping[str, str]:
    """Return the IDs of resources of a subscription by their names in lower case.

    Args:
        kind: the words of `az` before `list`, such as `storage account` or `keyvault`.
        subscription: the ID of the subscription.
        env: the variables of the command.
    """
    found, _ = _ask_az((*kind.split(), "list", "--subscription", subscription), env)
    ids = [str(each.get("id") or "") for each in found]
    return {each.rpartition("/")[2].lower(): each for each in ids if each}


def find_account(text: str, option: str, accounts: Sequence[ListedAccount]) -> str:
    """Return the ID of an account by its number in the list, its name or its ID; "" for `new`.

    Raises:
        RunnerError: it is none of these.
    """
    if text.lower() in ("", NEW):
        return ""
    if text.startswith("/"):
        return text
    if found := _find_listed(text, accounts):
        return found
    names = _names_of(accounts)
    raise RunnerError(
        "R-INIT-VALUE",
        f"invalid {option} {text!r}",
        why="the Azure CLI lists no account of this name in the subscription",
        fix=f"use one of: {names}" if names else "use its ID, which begins with /subscriptions/",
    )


def adopt_account(answers: Answers, accounts: Sequence[ListedAccount]) -> Answers:
    """Return the answers with region and linked storage of a Batch account that `az` lists."""
    ids = {each.id.lower(): each for each in accounts}
    account = ids.get(answers.batch_account.lower())
    if account is None:
        return answers
    place = region_name(account.location)
    return replace(answers, location=place, storage_account=account.storage)


def account_lines(accounts: Sequence[ListedAccount]) -> Sequence[str]:
    """Return one line per account, with its number."""
    return [
        f"{number}  {each.name}  {each.location}, resource group {each.group}"
        for number, each in enumerate(accounts, 1)
    ]


def _ask_az(
    words: Sequence[str], env: Mapping[str, str]
) -> tuple[Sequence[Mapping[str, Any]], str]:
    """Return the list that an `az` command prints, and why it is empty, if it failed."""
    program = shutil.which("az", path=env.get("PATH"))
    if program is None:
        return (), "the Azure CLI (az) is not installed"
    try:
        done = subprocess.run(
            [program, *words, "--output", "json"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=dict(env),
            timeout=_AZ_TIMEOUT_S,
            check=False,
        )
        found: object = json.loads(done.stdout) if done.returncode == 0 else []
    except (OSError, subprocess.TimeoutExpired) as err:
        return (), f"the Azure CLI does not respond: {err}"
    except ValueError as err:
        return (), f"the Azure CLI printed no JSON: {err}"
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        return (), f"the Azure CLI failed: {lines[-1][:200] if lines else ''}"
    if not isinstance(found, list):
        return (), "the Azure CLI printed no list"
    rows = cast("list[Any]", found)
    return [cast("dict[str, Any]", row) for row in rows if isinstance(row, dict)], ""


def _subscriptions(found: Iterable[Mapping[str, Any]]) -> Sequence[ListedSubscription]:
    listed: list[ListedSubscription] = []
    for each in found:
        user: Any = each.get("user") or {}
        if each.get("state", "Enabled") == "Enabled":
            current, name = bool(each.get("isDefault")), str(user.get("name") or "")
            listed.append(ListedSubscription(str(each["id"]), str(each["name"]), current, name))
    return sorted(listed, key=lambda each: not each.current)


def default_answers(
    settings: Settings, subscriptions: Sequence[ListedSubscription], env: Mapping[str, str]
) -> Answers:
    """Return the default answers."""
    current = subscriptions[0] if subscriptions else None
    user = current.user if current and "@" in current.user else ""
    return replace(
        Answers(),
        stack=settings.stack,
        subscription=env.get("ARM_SUBSCRIPTION_ID") or (current.id if current else ""),
        location=region_name(env.get("ARM_LOCATION") or _FIRST_REGIONS[find_cloud(env).name]),
        email=user,
    )


def find_subscription(text: str, subscriptions: Sequence[ListedSubscription]) -> str:
    """Return the ID of a subscription by its number in the list, its name or its ID.

    Raises:
        RunnerError: it is none of these.
    """
    found = _find_listed(text, subscriptions)
    if found or not _names_of(subscriptions) or _ID.fullmatch(text) or not text:
        return found or text
    raise RunnerError(
        "R-INIT-VALUE",
        f"invalid --subscription {text!r}",
        why="expected the ID or the name of a subscription",
        fix=f"use one of: {_names_of(subscriptions)}",
    )


def _find_listed(text: str, listed: Sequence[ListedSubscription | ListedAccount]) -> str:
    """Return the ID of what has this number in the list or this name, or an empty string."""
    known = {each.name.lower(): each.id for each in listed}
    known |= {str(number): each.id for number, each in enumerate(listed, 1)}
    return known.get(text.lower(), "")


def _names_of(listed: Sequence[ListedSubscription | ListedAccount]) -> str:
    return ", ".join(each.name for each in listed[:_LISTED])


def region_lines(settings: Settings) -> Sequence[str]:
    """Return lines with the regions that have a known price of the default size."""
    size, table = Answers().vm_size, load_price_table(settings.home)
    lines = [f"prices of {size}:", f"{'region':<20} {'spot':>7} {'dedicated':>10}"]
    for place in table.locations(size)[:_LISTED]:
        spot, dedicated = (table.find(size, place, spot=spot) for spot in (True, False))
        lines.append(f"{place:<20} {_usd(spot):>7} {_usd(dedicated):>10}")
    return lines


def _usd(price: Price | None) -> str:
    return f"{price.usd_per_hour:.2f}" if price else "unknown"


def check_location(location: str, listed: Collection[str]) -> None:
    """Raise RunnerError for an unknown region.

    Args:
        location: the region.
        listed: the regions of the subscription; if it is empty, those that runner knows count.
    """
    known = {region_name(each) for each in listed or REGIONS}
    if region_name(location) in known:
        return
    if listed:
        why = "the subscription has no such region"
        otherwise = "run `az account list-locations -o table` to list all regions"
    else:
        why = "no known region has this name, and those of the subscription could not be listed"
        otherwise = "write it like westeurope"
    raise RunnerError(
        "R-AZURE-REGION",
        f"unknown region {location!r}",
        why=why,
        fix=did_you_mean(region_name(location), known) or otherwise,
        exit_code=ExitCode.USAGE,
    )


def size_lines(settings: Settings, location: str) -> Sequence[str]:
    """Return lines with the default size and the cheapest GPU sizes of a region."""
    today = datetime.now(UTC).date()
    location = region_name(location)
    # A region that only Azure knows has no prices yet.
    priced = location in REGIONS or location in {
        key.location for key in load_price_table(settings.home).rows
    }
    found = (
        list_skus(settings.home, gpu=None, region=location, include_retired=False, today=today)
        if priced
        else ()
    )
    rows = [row for row in found if row.machine.gpu]
    prices = {id(row): row.spot or row.dedicated for row in rows}
    if not any(prices.values()):
        load = f"to load them: runner skus --refresh --region {location}"
        return (f"no prices are known; {cloud_of_region(location).prices or load}",)
    default = Answers().vm_size.lower()
    rows.sort(
        key=lambda row: (
            row.machine.vm_size.lower() != default,
            price.usd_per_hour if (price := prices[id(row)]) else math.inf,
        )
    )
    names = [("size", "GPU")]
    names += [(x.machine.vm_size, f"{x.machine.gpus} x {x.machine.gpu}") for x in rows[:_LISTED]]
    usd = [("spot", "dedicated"), *((_usd(x.spot), _usd(x.dedicated)) for x in rows[:_LISTED])]
    size_width, gpu_width = (max(map(len, column)) for column in zip(*names, strict=True))
    lines = [
        f"{size:<{size_width}} {gpu:<{gpu_width}} {spot:>7} {dedicated:>10}"
        for (size, gpu), (spot, dedicated) in zip(names, usd, strict=True)
    ]
    noted = {row.machine.vm_size: row.machine.note for row in rows[:_LISTED] if row.machine.note}
    lines += [f"{size}: {note}" for size, note in noted.items()]
    return lines


def render_stack(answers: Answers) -> str:
    """Return the text of `Pulumi.<stack>.yaml`."""
    lines = ["# Written by `runner init`; docs/guides/azure.md describes every key.", "config:"]
    if answers.subscription:
        lines.append(f"  azure-native:subscriptionId: {_scalar(answers.subscription)}")
    lines.append(f"  azure-native:location: {_scalar(answers.location)}")
    if (cloud := cloud_of_region(answers.location)) is not PUBLIC:
        lines.append(f"  runner:cloud: {cloud.name}")
    adopted = [
        f"    {key}: {_scalar(value)}"
        for key in ("resource_group", "batch_account", "storage_account")
        if (value := getattr(answers, key))
    ]
    if adopted:
        lines += ["  runner:adopt:  # used, and never changed or deleted", *adopted]
    if answers.budget in ("", "0"):
        lines.append("  runner:budget: null")
    else:
        lines.append("  runner:budget:")
        lines.append(f"    usd_per_month: {_number(answers.budget)}")
        if answers.email:
            lines.append(f"    emails: [{_scalar(answers.email)}]")
    return "\n".join(
        [
            *lines,
            "  runner:pools:",
            "    - id: gpu",
            f"      vm_size: {_scalar(answers.vm_size)}",
            f"      max_spot: {_number(answers.max_nodes)}",
            "",
        ]
    )


def _scalar(text: str) -> str:
    """Return a YAML scalar that is text: quoted unless it is a plain word."""
    plain = re.fullmatch(r"[A-Za-z][\w.@+-]{0,200}", text, re.ASCII)
    return text if plain and text.lower() not in _YAML_WORDS else json.dumps(text)


def _number(text: str) -> str:
    return text if _NUMBER.fullmatch(text) else _scalar(text)


def plan_answers(answers: Answers, settings: Settings, env: Mapping[str, str]) -> Plan:
    """Return the plan of the files for these answers.

    Raises:
        RunnerError: a value is invalid; the error names the file that would be written.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file = stack_file(folder, answers.stack)
        settings = replace(settings, stack=answers.stack)
        try:
            if file.parent != folder:  # the name has a slash
                raise FileNotFoundError
            (folder / PROJECT).write_text(_PROJECT_TEXT, encoding="utf-8")
            file.write_text(render_stack(answers), encoding="utf-8")
        except OSError as err:
            raise RunnerError(
                "R-STACK-NAME",
                f"invalid stack name {answers.stack!r}",
                why="allowed: letters, digits, '.', '_' and '-'",
                fix="use a valid name, such as --stack dev",
            ) from err
        # The answers take precedence; an example stands for an unknown subscription.
        kept = {key: value for key, value in env.items() if key not in EXAMPLE}
        if not answers.subscription:
            kept["ARM_SUBSCRIPTION_ID"] = EXAMPLE["ARM_SUBSCRIPTION_ID"]
        return plan_stack(settings, cwd=folder, env=kept, now=datetime.now(UTC))


def stack_file(folder: Path, stack: str) -> Path:
    """Return the path of a stack's file."""
    return folder / f"Pulumi.{stack}.yaml"


def project_folder(cwd: Path) -> Path:
    """Return the folder of Pulumi.yaml, or `cwd`, where it will be written."""
    try:
        return find_project(cwd)
    except RunnerError:
        if not (cwd / PROJECT).exists():
            return cwd
        raise RunnerError(
            "R-INIT-PROJECT",
            f"{cwd / PROJECT} belongs to another Pulumi project",
            fix="run `runner init` in another folder",
        ) from None


def write_files(answers: Answers, folder: Path) -> Sequence[Path]:
    """Write the stack's file, and Pulumi.yaml with a program if there is none. Return the paths.

    Each file is written atomically.
    """
    texts = {stack_file(folder, answers.stack): render_stack(answers)}
    if not (folder / PROJECT).exists():
        texts = {
            folder / PROJECT: _PROJECT_TEXT,
            **texts,
            folder / _PROGRAM: _PROGRAM_TEXT,
        }
    parts = {path: path.with_name(f"{path.name}.{os.getpid()}.part") for path in texts}
    try:
        for path, text in texts.items():
            path.parent.mkdir(exist_ok=True)
            parts[path].write_text(text, encoding="utf-8")
        for path, part in parts.items():
            part.replace(path)
    except OSError as err:
        raise not_writable(folder, err) from err
    finally:
        for part in parts.values():
            part.unlink(missing_ok=True)
    return list(texts)
