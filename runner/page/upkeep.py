"""The actions on what runs need: the local services, stacks, pools' formulas, prices, the index."""

from __future__ import annotations

from pathlib import Path

from runner.page import losses
from runner.page.forms import Action, Field, Values, texts
from runner.protocol.errors import RunnerError


def check_formula(values: Values) -> Values:
    """Return the values of a form with a formula. Raise RunnerError for the name of a file.

    The command reads a file of that name, which is none of the page's readers.
    """
    formula = "".join(texts(values, "formula")[:1])
    if "=" in formula and "\0" not in formula and not _is_file(formula):
        return {**values, "formula": formula.replace("\r\n", "\n")}
    raise RunnerError(
        "R-PAGE-FORM",
        "formula is missing",
        why="a formula sets variables",
        fix="$TargetLowPriorityNodes = 1; $TargetDedicatedNodes = 0;",
    )


def _is_file(text: str) -> bool:
    try:
        return Path(text).exists()
    except OSError:  # longer than a name
        return False


UPKEEP_ACTIONS = (
    Action(
        "local-up",
        "Start the services",
        ("local", "up"),
        options={"nodes": "--nodes", "slots": "--slots"},
        fields=(
            Field("nodes", "Nodes", "number", usual="as before", low=1),
            Field("slots", "Task slots per node", "number", usual="as before", low=1),
        ),
        after="/environment",
        takes="",
    ),
    Action(
        "local-down",
        "Stop the services",
        ("local", "down"),
        asks="The services stop; their data stays.",
        loss=losses.SERVICES,
        after="/environment",
        takes="",
        prints_json=False,
    ),
    Action(
        "local-reset",
        "Delete the services",
        ("local", "reset", "--yes"),
        asks="The services stop, and their jobs, runs, models and keys are deleted. "
        "This cannot be undone.",
        options={"state": "--state"},
        fields=(Field("state", "Only pools, jobs and tasks; keep runs and models", "check"),),
        loss=losses.ALL_RUNS,
        after="/environment",
        takes="",
        prints_json=False,
    ),
    Action(
        "local-prune",
        "Free disk space",
        ("local", "prune", "--yes"),
        asks="Folders of ended tasks, and old versions and logs of the services, are deleted. "
        "Runs with their files are kept.",
        options={"all": "--all"},
        fields=(Field("all", "Also cached packages and data sets", "check"),),
        loss=losses.DISK,
        after="/environment",
        takes="",
    ),
    Action(
        "evict",
        "Evict the node",
        ("local", "evict", "{node}"),
        asks="The node and its disk are lost, as in Azure. Its tasks start again on another "
        "node, from their newest checkpoints.",
        options={"pool": "--pool", "notice": "--notice", "away": "--away"},
        fields=(
            Field("notice", "Time between notice and eviction", usual="30s"),
            Field("away", "Time until the node returns", usual="0s"),
        ),
        after="/pools/{pool}",
        loss=losses.NODE_TASKS,
        takes="",
    ),
    Action(
        "budget-set",
        "Set a budget",
        ("budget", "set", "{usd}"),
        asks="What would cost more is no longer submitted, whoever submits it.",
        options={"experiment": "--experiment"},
        fields=(
            Field("usd", "Cap in USD", help="Such as 50.", required=True),
            Field("experiment", "Experiment", usual="all runs of a calendar month"),
        ),
        after="/bill",
    ),
    Action(
        "budget-rm",
        "Remove the budget",
        ("budget", "rm"),
        asks="The budget of the experiment, or else of the month, no longer refuses submissions.",
        options={"experiment": "--experiment"},
        fields=(Field("experiment", "Experiment", usual="all runs of a calendar month"),),
        after="/bill",
        loss=losses.BUDGET,
    ),
    Action("index-rebuild", "Rebuild the index", ("index", "rebuild"), after="/runs"),
    Action(
        "prices",
        "Load prices",
        ("skus", "--refresh"),
        options={"region": "--region"},
        fields=(Field("region", "Region", help="Such as swedencentral.", required=True),),
        after="/environment",
        takes="",
    ),
    Action(
        "up",
        "Deploy",
        ("up", "--yes"),
        asks="Resources in Azure are created, changed or deleted, as below. They may cost money.",
        options={"refresh": "--refresh", "replace": "--replace"},
        fields=(
            Field("refresh", "Create again what was deleted by other means", "check"),
            Field("replace", "Pools to delete and create again", help="POOL or POOL,POOL"),
        ),
        loss=losses.DEPLOYMENT,
        after="/environment",
        takes="stack",
    ),
    Action(
        "down",
        "Delete the stack",
        ("down", "--yes"),
        asks="The environment in Azure is deleted. Runs, models and data stay, unless you choose "
        "otherwise. This cannot be undone.",
        options={"everything": "--everything", "force": "--force"},
        fields=(
            Field("everything", "Also delete runs, models and data", "check"),
            Field("force", "Also if runs or schedules are active", "check"),
        ),
        loss=losses.STACK,
        after="/environment",
        takes="stack",
    ),
    Action(
        "image-build",
        "Build a VM image",
        ("image", "build", "--no-wait"),
        asks="It takes about an hour of a GPU node, which costs money.",
        after="/environment",
        takes="stack",
    ),
    Action(
        "pool-formula",
        "Set the formula",
        ("pool", "autoscale", "apply", "{formula}", "--pool={pool}", "--yes"),
        asks="Batch sets the size of the pool by the formula, also to no nodes: runs on nodes that "
        "it removes start again from their newest checkpoints, unless it lets them finish.",
        options={"interval": "--interval"},
        fields=(
            Field("formula", "Formula", "lines", required=True),
            Field("interval", "Time between two evaluations", usual="unchanged"),
        ),
        loss=losses.FORMULA,
        prepare=check_formula,
        after="/pools/{pool}",
    ),
)
