"""Count the product files in which functions execute: `python -m tools.executed_files`.

Runs `runner train mnist` twice on local services of its own and records the second run: in the
client process, and in the agent that the emulator starts for the run's one attempt. The services
run already and the node has the recipe's environment, so that this is the warm path.

The rule: a file counts once a function in it was called (`sys.setprofile` and
`threading.setprofile`, every thread). Module bodies, class bodies and lambdas outside of functions
do not count; comprehensions do. Generated functions such as a dataclass's `__init__` belong to no
file. The client is the package `runner` without `runner.node`; the modules of `runner.node`
that it uses are listed separately. The agent is everything in its archive.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
HOOK = ROOT / "tools" / "profile_hook"
HOOKED = {"PYTHONPATH": str(HOOK)}
ARCHIVE = "runner-agent.pyz"
TRAIN = ("train", "mnist", "--target", "local", "--set", "subset=8000", "--set", "epochs=1")


@dataclass(frozen=True)
class Executed:
    """Files relative to the source root, in order of first execution."""

    client: tuple[str, ...]
    client_of_node: tuple[str, ...]
    agent: tuple[str, ...]


def measure(home: Path, data: Path | None) -> Executed:
    """Start services below `home`, record one run, stop the services."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        agent, client = folder / "agent.txt", folder / "client.txt"
        # Tasks run as this user, so that they can write the list of files.
        isolation = {"BATCH_EMULATOR_ISOLATION": "environment"}
        environment = {**os.environ, **isolation, "RUNNER_HOME": str(home)}
        train = [*TRAIN, "--data", str(data)] if data else [*TRAIN]
        train += ["--output-dir", str(folder / "outputs")]
        _runner(["local", "down"], environment)  # left by a killed measurement
        try:
            _runner(["local", "up", "--nodes", "1", "--slots", "1"], environment)
            _runner(train, environment)
            _record_agents(home, agent)
            _runner(train, {**environment, "EXECUTED_FILES": str(client), **HOOKED})
        finally:
            _runner(["local", "down"], environment)
        return _read(client, agent)


def _record_agents(home: Path, target: Path) -> None:
    """Add the hook to the Python of each node; it records where Python runs the agent."""
    nodes = home / "local" / "batch" / "nodes"
    folders = list(nodes.glob("*/*/python/lib/*/site-packages"))
    if not folders:
        raise SystemExit(f"no node has a Python below {home}")
    condition = f"any(word.endswith({ARCHIVE!r}) for word in sys.orig_argv)"
    for folder in folders:
        shutil.copy(HOOK / "sitecustomize.py", folder)
        (folder / "executed_files.pth").write_text(
            f"import os, sys; {condition} and os.environ.update(EXECUTED_FILES={str(target)!r})\n",
            encoding="utf-8",
        )


def _runner(arguments: Sequence[str], environment: dict[str, str]) -> None:
    """Run the command. Print its output if it fails."""
    done = subprocess.run(
        [sys.executable, "-m", "runner", *arguments],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"runner {shlex.join(arguments)} failed:\n{done.stdout}")


def _read(client: Path, agent: Path) -> Executed:
    """Return the recorded files of the product, relative to its root or that of the archive."""
    ours: list[str] = []
    for line in client.read_text(encoding="utf-8").splitlines():
        path = Path(line)
        if path.is_relative_to(ROOT / "runner"):
            ours.append(path.relative_to(ROOT).as_posix())
    # Modules compiled from the archive have its path; bytecode has the name in the archive.
    packed = [line.rpartition(f"{ARCHIVE}/")[2] for line in agent.read_text("utf-8").splitlines()]
    return Executed(
        client=tuple(name for name in ours if not name.startswith("runner/node/")),
        client_of_node=tuple(name for name in ours if name.startswith("runner/node/")),
        agent=tuple(dict.fromkeys(name for name in packed if name.startswith("runner/"))),
    )


def _print(title: str, files: Sequence[str]) -> None:
    print(f"{title}: {len(files)} files")
    for number, name in enumerate(files, 1):
        print(f"{number:5d}  {name}")
    print()


def main() -> None:
    """Print the files in order of first execution, and their number."""
    parser = argparse.ArgumentParser(description="Count the product files that one run executes.")
    home = ROOT / ".cache" / "executed-files"
    parser.add_argument("--home", type=Path, default=home,
                        help="RUNNER_HOME of the services; its caches are used again")  # fmt: skip
    parser.add_argument("--data", type=Path,
                        help="folder with MNIST; without it the runner finds the data")  # fmt: skip
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    arguments = parser.parse_args()
    found = measure(arguments.home.absolute(), arguments.data)
    if arguments.output == "json":
        counts = {name: len(files) for name, files in vars(found).items()}
        print(json.dumps({"counts": counts, "files": vars(found)}, indent=2))
        return
    _print("client, a warm `runner train mnist`", found.client)
    _print("of runner.node in the client", found.client_of_node)
    _print("agent, one attempt", found.agent)


if __name__ == "__main__":
    main()
