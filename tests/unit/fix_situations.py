"""The situations in which an error names a `runner` command in its fix."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from runner.contract import PoolOutput
from tests.unit.command_lines import commands_in, rendered
from tests.unit.core.recipe_maker import outputs
from tests.unit.source_tree import nodes, sources, text_of


@dataclass(frozen=True, slots=True)
class FixCase:
    """The words of a command that fails with an error, and data for the commands of its fix.

    Attributes:
        words: The command without `runner`.
        files: Files to write first, by path.
        values: Replacements of the placeholders in a printed command.
        beyond: Codes of other errors with which a printed command may fail, because they show that
            this error no longer occurs.
        cured: The result of `words` after the printed commands: "" for success, or the code of
            another error. None does not run them again.
    """

    words: str
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    values: Mapping[str, str] = field(default_factory=dict[str, str])
    beyond: tuple[str, ...] = ()
    cured: str | None = None


_STACK = """\
config:
  azure-native:location: eastus
  runner:pools: [{id: t4, vm_size: SIZE}]
"""
_PROJECT = {"Pulumi.yaml": "name: runner\nruntime: python\n"}
_OUTPUTS = "../home/stacks/dev.json"
_DEPLOYED = replace(
    outputs(),
    location="eastus",
    resource_group="rg-runner-dev",
    batch_account="dev",
    batch_endpoint="https://dev.invalid",
    storage_account="dev",
    blob_endpoint="https://dev.invalid",
    pools=(),
)
# A pool in a region without a price in the packaged table.
_UNPRICED = replace(
    _DEPLOYED,
    location="norwayeast",
    pools=(
        PoolOutput("t4", "Standard_NC4as_T4_v3", 1, 4, spot=True, max_nodes=2, release_minutes=20),
    ),
)
_CAPPED = _STACK.replace("eastus", "norwayeast").replace(
    "vm_size: SIZE", "vm_size: Standard_NC4as_T4_v3, max_spot: 2, spend_cap_usd_per_hour: 1"
)
_UNKNOWN_PRICE = """\
config:
  azure-native:location: norwayeast
  azure-native:subscriptionId: 11111111-2222-3333-4444-555555555555
  runner:pools: [{id: t4, vm_size: Standard_NC4as_T4_v3, max_spot: 2}]
"""
# Situations without services, by the code of the error.
ALONE: Mapping[str, FixCase] = {
    "R-COST-UNKNOWN": FixCase(
        "train mnist --target azure --max-cost 5 --dry-run",
        {_OUTPUTS: _UNPRICED.to_json()},
        beyond=("R-PRICES-FETCH",),
    ),
    "R-EXPLAIN-UNKNOWN": FixCase("explain R-RUN-UNKNWON", cured=""),
    "R-IMAGE-NONE": FixCase(
        "image ls", {_OUTPUTS: _DEPLOYED.to_json()}, beyond=("R-PROJECT-MISSING",)
    ),
    "R-LOCAL-EVICT": FixCase("local evict tvm --count 2", beyond=("R-LOCAL-DOWN",)),
    "R-LOCAL-RESET": FixCase("local reset"),
    "R-LOCAL-SEED": FixCase("local seed", beyond=("R-STACK-MISSING",)),
    "R-MACHINE-RETIRED": FixCase(
        "preview --offline",
        {**_PROJECT, "Pulumi.dev.yaml": _STACK.replace("SIZE", "Standard_NC6")},
    ),
    "R-MACHINE-UNKNOWN": FixCase(
        "preview --offline",
        {**_PROJECT, "Pulumi.dev.yaml": _STACK.replace("SIZE", "Standard_NC9")},
    ),
    "R-PRICES-CLOUD": FixCase("skus --refresh --region chinanorth3"),
    "R-PROJECT-MISSING": FixCase("preview --offline", beyond=("R-INIT-SUBSCRIPTION",)),
    "R-RECIPE-ALONE": FixCase("train a.py", {"a.py": "import b\n", "b.py": ""}),
    "R-RECIPE-COMMAND": FixCase("train .", {"package/__init__.py": "", "package/train.py": ""}),
    "R-RECIPE-ENTRY": FixCase("train a.py --entry b.py", {"a.py": "", "b.py": ""}),
    "R-REGISTRY-NONE": FixCase(
        "image registry", {_OUTPUTS: _DEPLOYED.to_json()}, beyond=("R-PROJECT-MISSING",)
    ),
    "R-RECIPE-PATH": FixCase(
        "train 'a b/tasks.yaml'",
        {"a b/tasks.yaml": "tasks: {one: {command: python -V}}\n"},
    ),
    "R-RECIPE-NAME": FixCase("recipe new my.model"),
    "R-POOL-NONE": FixCase(
        "train mnist --target azure --dry-run",
        {_OUTPUTS: _DEPLOYED.to_json()},
        beyond=("R-PROJECT-MISSING",),
    ),
    "R-POOL-CAP": FixCase(
        "preview --offline", {**_PROJECT, "Pulumi.dev.yaml": _CAPPED}, beyond=("R-PRICES-FETCH",)
    ),
    "R-PRICES-READ": FixCase(
        "skus", {"../home/prices.csv": "half a row"}, beyond=("R-PRICES-FETCH",)
    ),
    "R-SCENARIO": FixCase(
        "pool autoscale simulate formula.txt --duration soon",
        {"formula.txt": "$TargetLowPriorityNodes = 1;"},
    ),
    "R-SELFTEST-PRICE": FixCase(
        "selftest --target azure --yes",
        {**_PROJECT, "Pulumi.dev.yaml": _UNKNOWN_PRICE},
        beyond=("R-PRICES-FETCH",),
    ),
    "R-SETTING-VALUE": FixCase("ps --target nowhere"),
    "R-SHARE-NONE": FixCase(
        "data ls share: --target azure",
        {_OUTPUTS: _DEPLOYED.to_json()},
        beyond=("R-PROJECT-MISSING",),
    ),
    "R-SHELL": FixCase("completion"),
    "R-SKUS-GPU": FixCase("skus --gpu T9"),
    "R-SKUS-REGION": FixCase("skus --refresh", beyond=("R-PRICES-FETCH",)),
    "R-SKUS-UNKNOWN": FixCase("skus --region nowhere"),
    "R-STACK-CONFIG-READ": FixCase(
        "preview --offline --stack lab", _PROJECT, beyond=("R-INIT-SUBSCRIPTION",)
    ),
    "R-STACK-OUTPUTS": FixCase(
        "ps --target azure",
        {_OUTPUTS: "{}"},
        beyond=("R-PROJECT-MISSING", "R-JOIN-SUBSCRIPTION"),
    ),
    "R-STACK-READ": FixCase("ps --target azure", {f"{_OUTPUTS}/a": "a folder"}),
    "R-STACK-MISSING": FixCase(
        "ps --target azure", beyond=("R-PROJECT-MISSING", "R-JOIN-SUBSCRIPTION")
    ),
    "R-STUCK-DETACHED": FixCase(
        "train mnist --detach --fail-if-stuck 15m", beyond=("R-STACK-MISSING",)
    ),
    "R-SUBMIT-RECIPE": FixCase("submit 'a b/train.py'", {"a b/train.py": ""}),
    "R-WATCH-FORMAT": FixCase("ps -w -o json", beyond=("R-STACK-MISSING",)),
}
# Situations on local services. The run `done` succeeded and is version 1 of the models `fixes` and
# `ours`; the run `kept` is version 1 of `needed`; the run `failed` failed. The model `used` has two
# versions, and the first has the alias `live`.
SERVED: Mapping[str, FixCase] = {
    "R-CANCEL-WHICH": FixCase("cancel"),
    "R-DATA-FOLDER-RM": FixCase("data rm fixes", beyond=("R-DATA-NOT-CONFIRMED",)),
    "R-DATA-NONE": FixCase("data get nothing-there here"),
    "R-DATA-OURS": FixCase("data rm models:ours", values={"NAME@VERSION": "ours@1"}),
    "R-EXPERIMENT-UNKNOWN": FixCase("experiments show nothing-like-it"),
    "R-FILE-UNKNOWN": FixCase("files get {done} nothing.txt"),
    "R-JOB-ENDED": FixCase("sweep pause {sweep}"),
    "R-DATA-MISSING": FixCase("data put nothing there"),
    "R-METRIC-UNKNOWN": FixCase("metrics {done} nothing"),
    "R-MODEL-ALIAS-MOVED": FixCase(
        "models alias used@2 moved --unalias", cured="R-MODEL-ALIAS-UNKNOWN"
    ),
    "R-MODEL-ALIAS-UNKNOWN": FixCase("models show fixes@nobody", cured=""),
    "R-MODEL-BEST": FixCase("models show unranked@best"),
    "R-MODEL-FILES": FixCase("models register {done} other-files --path 'no/*'"),
    "R-MODEL-FOLDER": FixCase("models get fixes@1 blocked", {"blocked": ""}),
    "R-MODEL-IN-USE": FixCase("models rm used@1 -y", values={"used@OTHER": "used@2"}),
    "R-MODEL-OVERWRITE": FixCase(
        "models get fixes@1 changed", {"changed/model.txt": "2"}, values={"ANOTHER_FOLDER": "other"}
    ),
    "R-MODEL-REFERENCE": FixCase("models show fixes@/"),
    "R-MODEL-RUN": FixCase("models register {failed} fixes"),
    "R-MODEL-UNKNOWN": FixCase("models show nothing", values={"RUN": "{done}", "NAME": "other"}),
    "R-MODEL-VERSION": FixCase("models show fixes@99"),
    "R-NODE-UNKNOWN": FixCase("logs {done} --node 7"),
    "R-COST-RECONCILE": FixCase("cost {done} --reconcile train.py", beyond=("R-COST-EXPORT",)),
    "R-NODE-MISSING": FixCase("pool disable local nothing"),
    "R-POOL-MISSING": FixCase("pool show nothing"),
    "R-POOL-SAME": FixCase("pool drain local --to local"),
    "R-POOL-UNKNOWN": FixCase("pool drain local --to nothing"),
    "R-REPRODUCE-OUTCOME": FixCase("reproduce {failed}"),
    "R-REACH-FORWARD": FixCase("ssh {done} --forward x", beyond=("R-REACH-ENDED",)),
    "R-REACH-ENDED": FixCase("exec {done} -- true"),
    "R-RESUME-NOTHING": FixCase("resume {done}"),
    "R-RESUME-WHICH": FixCase("resume {done} --fresh --checkpoint 1"),
    "R-RETRY-STATE": FixCase("retry {done}"),
    "R-RETRY-WHICH": FixCase("retry", beyond=("R-RETRY-STATE", "R-RUN-GOES-ON")),
    "R-RM-WHICH": FixCase("rm", beyond=("R-NOT-CONFIRMED",)),
    "R-RUN-IN-USE": FixCase("rm {kept}"),
    "R-RUN-REFERENCE": FixCase("show /"),
    "R-RUN-UNKNOWN": FixCase("show nothing"),
    "R-SWEEP-BEST": FixCase("sweep best {sweep}"),
    "R-SWEEP-FILES": FixCase("sweep start mnist -p 'epochs={{files: \"blob:data/no/*\"}}'"),
    "R-SWEEP-UNKNOWN": FixCase("sweep show nothing"),
    "R-BUDGET-UNKNOWN": FixCase("budget rm --experiment nothing"),
    "R-SCHEDULE-UNKNOWN": FixCase("schedule show nothing"),
}


_MARK = re.compile(r"@pytest\.mark\.fix\(((?:[^()]|\([^()]*\))*)\)")


def codes_of_tests() -> set[str]:
    """Return the codes in the marks `@pytest.mark.fix` of tests."""
    marks = (mark for path in sources("tests") for mark in _MARK.findall(text_of(path)))
    return {code for mark in marks for code in re.findall(r"\"(R-[A-Z0-9-]+)\"", mark)}


def codes_with_commands() -> set[str]:
    """Return the codes of errors in the sources whose fix names a `runner` command."""
    return {
        code
        for path in sources("runner", "infra")
        for call in nodes(path)
        if isinstance(call, ast.Call) and (code := _code(call)) and _names_command(call)
    }


def _code(call: ast.Call) -> str:
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    texts = (rendered(each) or "" for each in given)
    return next((text for text in texts if text.startswith("R-") and "{" not in text), "")


def _names_command(call: ast.Call) -> bool:
    given = [*call.args, *(each.value for each in call.keywords if each.arg == "fix")]
    texts = (rendered(node) or "" for each in given for node in ast.walk(each))
    return any(command.startswith("runner ") for text in texts for command in commands_in(text))
