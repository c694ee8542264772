"""The Pulumi program under mocks against only importing the classes that it uses.

A third program measures Pulumi itself: it declares the same resources with the same inputs in
sequence, without our configuration and components.
"""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from bench.report import Ratio

ROUNDS = 9  # the minimum of seven rounds still varies by 5 %
# Measure processor time, because other load of the machine increases the wall-clock time. Read the
# peak memory since exec, because the value of getrusage includes the memory of the parent process.
_FIGURES = """
import json, time
start = time.process_time()
{body}
seconds = time.process_time() - start
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps([seconds, int(peak.split()[1]) / 1024]))
"""
_OURS = """
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID
from runner_infra.engine.offline import preview_resources
from runner_infra.config.stack_file import load_stack_config
from runner.core.pricing.prices import load_price_table
example = {"ARM_LOCATION": "eastus", "ARM_SUBSCRIPTION_ID": str(UUID(int=0))}
config = load_stack_config(Path("Pulumi.dev.yaml"), env=example)
found, _ = preview_resources(config, datetime.now(UTC), load_price_table(None))
assert len(found) > 20
"""
_RECORD = """
import json
from pulumi.runtime import mocks, rpc
seen = []
class Recorder(mocks.MockMonitor):
    def RegisterResource(self, request):
        if request.custom:
            inputs = rpc.deserialize_properties(request.object)
            seen.append((request.type, request.name, inputs))
        return super().RegisterResource(request)
mocks.MockMonitor = Recorder
{body}
print(json.dumps(seen, default=lambda unknown: "unknown"))
"""
_FLAT = """
from pulumi.runtime import mocks
class Mocks(mocks.Mocks):
    def new_resource(self, args): return None, {{}}
    def call(self, args): return {{}}, []
mocks.set_mocks(Mocks(), "runner", "dev", preview=True)
@mocks.test
def run():
    {lines}
    return pulumi.Output.from_input({{}})
run()
"""


@dataclass(frozen=True, slots=True)
class _Figures:
    seconds: float
    mebibytes: float


def measure() -> list[Ratio]:
    """Return the best of simultaneous runs. The peer imports the classes that ours registers."""
    resources: list[tuple[str, str, dict[str, object]]] = json.loads(
        _python(_RECORD.format(body=_OURS))
    )
    imports = _imports(sorted({token for token, _, _ in resources}))
    ours, peer, flat = _best([_OURS, imports, f"{imports}\n{_flat(resources)}"])
    what, floor = "importing its classes alone", "the same resources, nothing of ours"
    return [
        Ratio(
            "Pulumi program under mocks", "s", ours.seconds, what, peer.seconds,
            "<= 2x", ours.seconds <= 2 * peer.seconds,
        ),
        Ratio(
            "Pulumi program, memory", "MiB", ours.mebibytes, what, peer.mebibytes,
            "<= 1.3x", ours.mebibytes <= 1.3 * peer.mebibytes,
        ),
        Ratio("Pulumi program under mocks", "s", ours.seconds, floor, flat.seconds, "", None),
        Ratio("Pulumi program, memory", "MiB", ours.mebibytes, floor, flat.mebibytes, "", None),
    ]  # fmt: skip


def _imports(types: list[str]) -> str:
    """Return statements that import every class of the default stack."""
    lines = ["import pulumi"]
    for token in types:
        _, module, kind = token.split(":")
        lines.append(f"from pulumi_azure_native.{module} import {kind} as {module}_{kind}")
    return "\n".join(lines)


def _flat(resources: list[tuple[str, str, dict[str, object]]]) -> str:
    """Return a program that declares the resources in sequence, with the names of arguments."""
    lines: list[str] = []
    for token, name, inputs in resources:
        _, module, kind = token.split(":")
        lines.append(f"{module}_{kind}({name!r}, **named({module}_{kind}, {inputs!r}))")
    return _NAMED + _FLAT.format(lines="\n    ".join(lines))


# Converts wire names to arguments: minimumTlsVersion is minimum_tls_version, and resourceName of a
# resource has a trailing underscore.
_NAMED = """
def named(kind, inputs):
    code = kind._internal_init.__code__
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    known = {name.replace("_", "").lower(): name for name in names if name != "resource_name"}
    return {known[key.lower()]: value for key, value in inputs.items()}
"""


def _best(scripts: list[str]) -> list[_Figures]:
    found: list[list[list[float]]] = [[] for _ in scripts]
    programs = [_FIGURES.format(body=script) for script in scripts]
    with (
        ThreadPoolExecutor() as pool
    ):  # at the same time, so that other load affects all of them equally
        for number in range(ROUNDS + 1):
            for printed, into in zip(pool.map(_python, programs), found, strict=True):
                if number:  # the first round only warms the page cache
                    into.append(json.loads(printed.splitlines()[-1]))
    return [_Figures(min(r[0] for r in runs), min(r[1] for r in runs)) for runs in found]


def _python(script: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=Path(__file__).parents[1],
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout
