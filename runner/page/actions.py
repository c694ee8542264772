"""The actions of the page: each is a command of `runner`, which it shows and starts when confirmed.

The page changes nothing by itself, so an action does exactly what the command line does, with the
same checks, errors and exit codes. Words of a command are values of a form, never a shell's text
and never options. `forms.py` describes an action, `commands.py` starts it.
"""

from __future__ import annotations

from runner.page import losses
from runner.page.folder_actions import DATA_PUT, RECIPE_NEW, SCHEDULE, SUBMIT
from runner.page.forms import Action, Field, need
from runner.page.training import SWEEP, TRAIN
from runner.page.upkeep import UPKEEP_ACTIONS

_ALIAS = Field("alias", "Alias", help="A name for the version, such as production.", required=True)

_RUNNING = Field(
    "running",
    "Running trials",
    "select",
    choices=("", "wait", "terminate"),
    usual="requeue: they continue from their newest checkpoints",
)
_URI = "Tracking URI of MLflow, folder for TensorBoard, or OTLP endpoint."
_OF_SWEEP = "/sweeps/{sweep}"

SWEEP_ACTIONS = (
    Action(
        "sweep-pause",
        "Pause",
        ("sweep", "pause", "{sweep}"),
        options={"running": "--running"},
        fields=(_RUNNING,),
        after=_OF_SWEEP,
    ),
    Action("sweep-unpause", "Continue", ("sweep", "unpause", "{sweep}"), after=_OF_SWEEP),
    Action(
        "sweep-stop",
        "Stop",
        ("sweep", "stop", "{sweep}"),
        asks="The trials that have not ended are cancelled.",
        after=_OF_SWEEP,
        loss=losses.SWEEP_ENDS,
    ),
    Action(
        "group-stop",
        "Cancel",
        ("cancel", "{sweep}"),
        asks="The runs that have not ended are cancelled.",
        after=_OF_SWEEP,
        loss=losses.GROUP_ENDS,
    ),
    Action(
        "sweep-resume",
        "Start failed trials again",
        ("sweep", "resume", "{sweep}", "--detach"),
        options={"pool": "--pool", "from_start": "--from-start", "partial": "--partial"},
        fields=(
            Field("pool", "Pool", usual="that of each trial"),
            Field("from_start", "From the start, without the checkpoints", "check"),
            Field("partial", "Only the merge task, without the trials that failed", "check"),
        ),
        after=_OF_SWEEP,
    ),
    Action(
        "sweep-register",
        "Register the best trial",
        ("sweep", "best", "{sweep}"),
        options={"model": "--register", "metric": "--metric"},
        fields=(
            Field("model", "Model", help="Name of the model.", required=True),
            Field("metric", "Metric", usual="that of the sweep"),
        ),
        after="/models",
        prepare=need("model"),
    ),
    Action(
        "sweep-move",
        "Move to another pool",
        ("sweep", "move", "{sweep}"),
        options={"pool": "--to", "running": "--running"},
        fields=(Field("pool", "Pool", required=True), _RUNNING),
        after=_OF_SWEEP,
        prepare=need("pool"),
    ),
    Action(
        "sweep-rm",
        "Delete",
        ("rm", "{sweep}", "--yes"),
        asks="All its trials, with their files, logs and checkpoints, are deleted. "
        "This cannot be undone.",
        after="/sweeps",
        loss=losses.SWEEP_RUNS,
    ),
)

ACTIONS: dict[str, Action] = {
    action.name: action
    for action in (
        TRAIN,
        SWEEP,
        SUBMIT,
        SCHEDULE,
        RECIPE_NEW,
        DATA_PUT,
        *SWEEP_ACTIONS,
        *UPKEEP_ACTIONS,
        Action(
            "cancel",
            "Cancel",
            ("cancel", "{run}"),
            asks="The run ends; outputs are kept.",
            after="/runs/{run}",
            loss=losses.RUN_ENDS,
        ),
        Action("retry", "Retry", ("retry", "{run}", "--detach"), after="/runs/{run}"),
        Action(
            "resume",
            "Resume",
            ("resume", "{run}", "--detach"),
            options={"set": "--set", "checkpoint": "--checkpoint", "fresh": "--fresh"},
            fields=(
                Field("set", "Changed parameters", "lines", help="One NAME=VALUE per line."),
                Field("checkpoint", "Checkpoint", "number", usual="the newest", low=0),
                Field("fresh", "Start from the beginning, without a checkpoint", "check"),
            ),
            after="/runs/{run}",
        ),
        Action("reproduce", "Reproduce", ("reproduce", "{run}", "--detach"), after="/runs/{run}"),
        Action(
            "retry-failed",
            "Retry failed runs",
            ("retry", "--failed"),
            asks="Every failed or lost run that was not retried yet starts again.",
            options={"experiment": "--experiment"},
            fields=(Field("experiment", "Experiment", usual="all"),),
        ),
        Action(
            "export",
            "Export",
            ("export", "{run}", "--to={to}"),
            options={"uri": "--uri"},
            fields=(
                Field(
                    "to", "Tool", "select", choices=("mlflow", "tensorboard", "otlp"), required=True
                ),
                Field("uri", "Address", usual="of the tool's variable", help=_URI),
            ),
            after="/runs/{run}",
        ),
        Action(
            "register",
            "Register the model",
            ("models", "register", "{run}", "{name}"),
            options={"path": "--path", "alias": "--alias", "description": "--description"},
            fields=(
                Field("name", "Name", usual="`model` of the recipe, or the recipe's name"),
                Field("path", "Outputs", usual="all outputs", help="A glob, such as *.pt."),
                Field("alias", "Alias", usual="none", help="A name, such as production."),
                Field("description", "Description"),
            ),
            after="/models",
        ),
        Action(
            "rm",
            "Delete",
            ("rm", "{run}", "--yes"),
            asks="Its files, logs and checkpoints are deleted. This cannot be undone.",
            loss=losses.RUNS,
        ),
        Action(
            "models-alias",
            "Set an alias",
            ("models", "alias", "{model}", "{alias}"),
            fields=(_ALIAS,),
            after="/models",
        ),
        Action(
            "models-unalias",
            "Remove the alias",
            ("models", "alias", "{model}", "{alias}", "--unalias"),
            after="/models",
        ),
        Action(
            "models-rm",
            "Delete",
            ("models", "rm", "{model}", "--yes"),
            asks="Its files are deleted; its number is not used again. This cannot be undone.",
            options={"force": "--force"},
            fields=(Field("force", "Also if it has an alias, with the alias", "check"),),
            loss=losses.MODELS,
            after="/models",
        ),
        Action(
            "data-rm",
            "Delete",
            ("data", "rm", "{path}", "--recursive", "--yes"),
            asks="The files are deleted. This cannot be undone.",
            loss=losses.DATA,
            after="/data",
        ),
        Action(
            "schedule-pause",
            "Pause",
            ("schedule", "pause", "{schedule}"),
            after="/schedules/{schedule}",
        ),
        Action(
            "schedule-resume",
            "Resume",
            ("schedule", "resume", "{schedule}"),
            after="/schedules/{schedule}",
        ),
        Action(
            "schedule-trigger",
            "Start a run now",
            ("schedule", "trigger", "{schedule}"),
            after="/schedules/{schedule}",
        ),
        Action(
            "schedule-rm",
            "Delete",
            ("schedule", "rm", "{schedule}"),
            asks="The schedule is deleted, and its active runs are cancelled.",
            loss=losses.SCHEDULES,
            after="/schedules",
        ),
        Action(
            "pool-resize",
            "Resize the pool",
            ("pool", "resize", "{pool}", "{spot}"),
            options={"dedicated": "--dedicated", "disable_autoscale": "--disable-autoscale"},
            fields=(
                Field("spot", "Spot nodes", "number", low=0, required=True),
                Field("dedicated", "Dedicated nodes", "number", usual="as before", low=0),
                Field("disable_autoscale", "Also if it has a formula, without it", "check"),
            ),
            after="/pools/{pool}",
        ),
        Action(
            "pool-drain",
            "Drain the pool",
            ("pool", "drain", "{pool}"),
            asks="Its nodes get no more tasks, and still cost money.",
            options={"to": "--to", "running": "--running"},
            fields=(
                Field(
                    "to",
                    "Move the unfinished runs to pool",
                    usual="none: they pause until this pool is enabled",
                ),
                Field(
                    "running",
                    "Running runs",
                    "select",
                    choices=("", "requeue", "wait", "terminate"),
                    usual="requeue with another pool, else wait",
                    help="Requeued runs resume.",
                ),
            ),
            after="/pools/{pool}",
            loss=losses.POOL_TASKS,
        ),
        Action(
            "pool-enable", "Enable the pool", ("pool", "enable", "{pool}"), after="/pools/{pool}"
        ),
        Action(
            "pool-rm",
            "Delete the pool",
            ("pool", "rm", "{pool}", "--yes"),
            asks="Its nodes and the files on them are deleted, and a formula that was applied by "
            "hand. Runs and their outputs are kept. This cannot be undone.",
            loss=losses.POOL,
            after="/pools",
        ),
        Action(
            "node-disable",
            "Disable scheduling",
            ("pool", "disable", "{pool}", "{node}"),
            after="/pools/{pool}",
        ),
        Action(
            "node-enable",
            "Enable scheduling",
            ("pool", "enable", "{pool}", "{node}"),
            after="/pools/{pool}",
        ),
    )
}
