"""What a run leaves on a node for later runs of other code: nothing that they execute or read."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Cli, until
from tests.e2e.test_isolation import _CHOSEN, _AsUser, new_home

_RECIPE = "command: python train.py\nrequirements: requirements.txt\n"
_SECRET = "secrets: {TOKEN: {env: TOKEN}}\n"
# Overwrites everything that a later run could execute or read, and reports what it could change.
_ATTACK = """
import fcntl, json, os, pathlib, shutil, subprocess, sys
import iniconfig

EVIL = "import os; open({!r} + str(os.getpid()), 'w').write(os.environ.get('TOKEN', 'none'))\\n"
EVIL = EVIL.format(sys.argv[1])
node = pathlib.Path(os.environ["AZ_BATCH_NODE_SHARED_DIR"], "runner")
packages = pathlib.Path(iniconfig.__file__).parents[1]
environment = packages.parents[2]
cache = pathlib.Path(os.path.realpath(node / "cache"))
start = pathlib.Path(os.environ["AZ_BATCH_NODE_STARTUP_DIR"])
own = pathlib.Path(os.environ["AZ_BATCH_NODE_ROOT_DIR"])
changed = []

def attempt(name, function, *words):
    try:
        function(*words)
    except Exception:
        return
    changed.append(name)

def open_up(path):
    for each in (path, *path.parents):
        try:
            os.chmod(each, 0o777)
        except OSError:
            pass

def write(path, text=EVIL):
    open_up(path)
    path.write_text(text)

def replace(path, text=EVIL):
    open_up(path)
    path.unlink()
    path.write_text(text)
    path.chmod(0o755)

attempt("path file", write, packages / "evil.pth")
attempt("module", replace, pathlib.Path(iniconfig.__file__))
attempt("module in place", write, pathlib.Path(iniconfig.__file__))
for each in packages.rglob("*.pyc"):
    attempt("bytecode", replace, each)
attempt("new bytecode folder", os.mkdir, packages / "__pycache__")
attempt("console script", write, environment / "bin" / "evil")
attempt("interpreter", replace, environment / "bin" / "python", "#!/bin/sh\\n")
attempt("environment renamed", os.rename, environment, environment.with_name("other"))
attempt("environments renamed", os.rename, environment.parent, node / "other")
attempt("node folder renamed", os.rename, node, node.with_name("other"))
attempt("cache renamed", os.rename, cache, cache.with_name("other"))
attempt("cache link", replace, node / "cache")
attempt("uv", replace, node / "bin" / "uv")
for each in [each for each in (cache / "uv").rglob("*.py")][:20]:
    attempt("cache of uv", replace, each)
attempt("cache of uv, new", write, cache / "uv" / "evil")
attempt("environment of another hash", os.mkdir, environment.with_name("0" * 32))
attempt("hooks", write, node / "hooks" / "evil")
for each in (node / "hooks").rglob("*.py"):
    attempt("hook", write, each)
attempt("sweeps", os.makedirs, node / "sweeps" / "evil")
attempt("sampler", os.makedirs, node / "sampler")
attempt("prepared", write, node / "prepared-evil")
attempt("compiled programs of other code", os.mkdir, cache / "jax" / "other")
attempt("data", write, pathlib.Path(os.environ["RUNNER_DATA_DIR"], "d"), "changed")
attempt("data, new", write, pathlib.Path(os.environ["RUNNER_DATA_DIR"], "new"), "changed")
attempt("start task", write, start / "evil")
for each in own.glob("**/site-packages"):
    if pathlib.Path(os.environ["VIRTUAL_ENV"]) not in each.parents:
        attempt(f"Python of the node {each}", write, each / "evil.pth")

def hold(path):
    handle = os.open(path, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)

for each in [*cache.rglob("locks/*"), *node.rglob("*.lock")]:
    attempt(f"lock {each}", hold, each)
agent = os.getppid()
attempt("environment of the agent", pathlib.Path(f"/proc/{agent}/environ").read_bytes)
attempt("memory of the agent", open, f"/proc/{agent}/mem", "r+b")
attempt("files of the agent", os.listdir, f"/proc/{agent}/root/")
done = subprocess.run(
    [
        *("unshare", "-rm", "sh", "-c"),
        f"mount -o remount,rw,bind {node}; umount {node}; touch {node}/x",
    ],
    capture_output=True,
)
if done.returncode == 0:
    changed.append("namespaces")
pathlib.Path(os.environ["RUNNER_OUTPUT_DIR"], "changed.json").write_text(json.dumps(changed))
"""
_HONEST = """
import json, os, pathlib, sys
import iniconfig
data = pathlib.Path(os.environ["RUNNER_DATA_DIR"])
seen = {each.name: each.read_text() for each in data.iterdir()}
pathlib.Path(os.environ["RUNNER_OUTPUT_DIR"], "seen.json").write_text(json.dumps(seen))
"""


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Generator[Cli]:
    """Yield services whose tasks run as a user, because nothing is closed to root."""
    if _CHOSEN.owner is None:
        pytest.skip(_CHOSEN.why)
    folder = tmp_path_factory.mktemp("nodes")
    (folder / "work").mkdir()
    cli = _AsUser(new_home(folder / "home"), folder / "work")
    yield cli
    outside = cli.home / "local" / "batch" / "outside"
    place = outside.readlink() if outside.is_symlink() else None
    cli.run("local", "reset", "--yes")
    if place is not None:
        shutil.rmtree(place)


def _outputs(cli: Cli, project: Path, *words: object) -> Any:
    """Run a project, and return the JSON document that it wrote."""
    shutil.rmtree(cli.cwd / "outputs", ignore_errors=True)
    cli.ok("train", project, *words)
    [written] = (cli.cwd / "outputs").glob("*/*.json")
    return json.loads(written.read_text("utf-8"))


@pytest.fixture
def project(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that creates a project with a requirement."""

    def create(name: str, text: str, recipe: str = "") -> Path:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "train.py").write_text(text, encoding="utf-8")
        (folder / "train.yaml").write_text(_RECIPE + recipe, encoding="utf-8")
        (folder / "requirements.txt").write_text("iniconfig==2.1.0\n", encoding="utf-8")
        return folder

    return create


@pytest.mark.attack
def test_run_changes_nothing_that_later_runs_execute_or_read(
    cli: Cli,
    project: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "d").write_text("data", encoding="utf-8")
    stolen = tmp_path / "stolen"
    stolen.mkdir()
    stolen.chmod(0o777)
    for folder in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        folder.chmod(0o711)
    attacker = project("attacker", _ATTACK)
    recipe = _RECIPE.replace("train.py", f"train.py {stolen}/by-")
    (attacker / "train.yaml").write_text(recipe, encoding="utf-8")
    victim = project("victim", _HONEST, _SECRET)
    data = ("--data", tmp_path / "data")
    assert _outputs(cli, attacker, *data) == []
    monkeypatch.setenv("TOKEN", "secret of another run")
    assert _outputs(cli, victim, *data) == {"d": "data"}
    assert not list(stolen.iterdir())


_SETUP = """
import os, pathlib, sys
from setuptools import setup

here = pathlib.Path(os.environ["UV_CACHE_DIR"])
runner = pathlib.Path(os.environ["AZ_BATCH_NODE_SHARED_DIR"], "runner")
changed = []
for each in [*here.rglob("iniconfig/__init__.py"), here / "evil", runner / "envs" / ("0" * 32)]:
    try:
        for folder in (each, *each.parents):
            try:
                os.chmod(folder, 0o777)
            except OSError:
                pass
        each.unlink(missing_ok=True)
        each.write_text("EVIL = 1")
        changed.append(str(each))
    except OSError:
        pass
setup(name="evil", version="1", py_modules=["evil"])
pathlib.Path("evil.py").write_text(f"changed = {changed!r}")
"""
_CLEAN = """
import json, os, pathlib
import iniconfig
evil = hasattr(iniconfig, "EVIL")
pathlib.Path(os.environ["RUNNER_OUTPUT_DIR"], "evil.json").write_text(json.dumps(evil))
"""
_BUILT = """
import json, os, pathlib
import evil, iniconfig
pathlib.Path(os.environ["RUNNER_OUTPUT_DIR"], "changed.json").write_text(json.dumps(evil.changed))
"""


@pytest.mark.attack
def test_package_that_is_built_from_source_changes_no_cache(
    cli: Cli, project: Callable[..., Path]
) -> None:
    attacker = project("attacker", _BUILT)
    (attacker / "lib").mkdir()
    (attacker / "lib" / "setup.py").write_text(_SETUP, encoding="utf-8")
    (attacker / "lib" / "evil.py").write_text("", encoding="utf-8")
    (attacker / "requirements.txt").write_text("./lib\niniconfig==2.1.0\n", encoding="utf-8")
    changed = _outputs(cli, attacker)
    assert any("iniconfig" in each for each in changed), "its code ran, and sees its own changes"
    assert not any("0" * 32 in each for each in changed), "it made an environment for others"
    assert not [
        each for each in changed if Path(each).exists() and "EVIL" in Path(each).read_text()
    ]
    victim = project("victim", _CLEAN)
    # Another set of packages, so that the environment is built from the cache.
    (victim / "requirements.txt").write_text("iniconfig==2.1.0\nsix\n", encoding="utf-8")
    assert _outputs(cli, victim) is False


_INSTALLS = """
import json, os, pathlib, subprocess, sys
import iniconfig
shared = iniconfig.__file__
before = subprocess.run([sys.executable, "-c", "import six"], capture_output=True).returncode
if sys.argv[1:]:
    subprocess.run(["pip", "install", "-q", "six", "iniconfig==2.0.0"], check=True)
ask = "import iniconfig, six; print(iniconfig.__file__); print(six.__file__)"
done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True)
seen = {"before": before, "shared": shared, "files": done.stdout.split(), "prefix": sys.prefix,
        "variable": os.environ["VIRTUAL_ENV"]}
pathlib.Path(os.environ["RUNNER_OUTPUT_DIR"], "seen.json").write_text(json.dumps(seen))
"""


def test_packages_that_a_run_installs_are_its_own(cli: Cli, project: Callable[..., Path]) -> None:
    folder = project("installs", _INSTALLS)
    (folder / "train.yaml").write_text(_RECIPE.replace("train.py", "train.py 1"), encoding="utf-8")
    for _ in range(2):
        seen = _outputs(cli, folder)
        assert seen["before"] == 1, "the run before had installed it"
        assert seen["prefix"] == seen["variable"]
        assert all(file.startswith(seen["prefix"]) for file in seen["files"])
        assert len(seen["files"]) == 2
        assert "/shared/runner/envs/" in seen["shared"]


def test_prepare_installs_for_each_task_of_its_job(cli: Cli, project: Callable[..., Path]) -> None:
    folder = project("prepares", _INSTALLS, "prepare: pip install -q six\n")
    for _ in range(2):
        seen = _outputs(cli, folder)
        assert seen["before"] == 0
        [shared, own] = seen["files"]
        assert own.startswith(seen["prefix"])
        assert shared == seen["shared"]


_SEARCHES = """
import ctypes, json, os, pathlib, sys, time

EVIL = "open(__file__ + '.evil', 'w')"
root = pathlib.Path(os.environ["AZ_BATCH_NODE_ROOT_DIR"])
own = pathlib.Path(os.environ["AZ_BATCH_TASK_DIR"])
nodes = root.parents[2]
changed = []
libc = ctypes.CDLL(None, use_errno=True)

def attempt(name, function, *words):
    try:
        found = function(*words)
    except Exception:
        return
    if found is not False:
        changed.append(name)

def holds(path):
    return b"TOKEN=" in pathlib.Path(path).read_bytes()

until = time.time() + 60
victims = []
while not victims and time.time() < until:  # the victim is a process with this argument
    lines = {each: (each / "cmdline").read_bytes() for each in pathlib.Path("/proc").glob("[0-9]*")}
    victims = [each for each, line in lines.items() if line.endswith(b"of-the-victim\\0")]
assert victims
victim = max(victims, key=lambda each: int(each.name))
attempt("environment", holds, victim / "environ")
attempt("memory", open, victim / "mem", "r+b")
attempt("folder of the process", os.listdir, victim / "cwd/")
attempt("root of the process", os.listdir, victim / "root/")
attempt("descriptors", open, victim / "fd" / "1", "a")
for kind in ("user", "mnt"):
    def enter():
        handle = os.open(victim / "ns" / kind, os.O_RDONLY)
        assert libc.setns(handle, 0) == 0
    attempt(f"namespace {kind}", enter)
attempt("tracing", lambda: libc.ptrace(16, int(victim.name), 0, 0) == 0 or False)
ups = [pathlib.Path(*[".."] * count) for count in range(1, 12)]
for top in {nodes, nodes.parent, root, *ups}:
    for each in [*top.glob("**/workitems/*/*/*"), *top.glob("**/tasks/shared/runner")]:
        if own.samefile(each) or each.samefile(root / "shared" / "runner"):
            continue
        attempt(f"seen {each}", os.listdir, each)
        attempt(f"written {each}", (each / "evil").write_text, EVIL)
for folder in (nodes, nodes / "other", root.parent, root, root / "workitems", root / "startup"):
    attempt(f"written {folder}", (folder / "evil").write_text, EVIL)
for folder in (own.parent, root, root / "shared", root / "workitems", root.parent):
    attempt(f"renamed {folder}", os.rename, folder, folder.with_name("other"))
for name in ("shared", "volatile", "fsmounts"):
    (root / name / "honest").write_text("")
(own / "honest").write_text("")
pathlib.Path(os.environ["RUNNER_OUTPUT_DIR"], "changed.json").write_text(json.dumps(changed))
"""
_WAITS = "import os, time; print('begun', os.environ['TOKEN'][:0], flush=True); time.sleep({})"


@pytest.mark.attack
@pytest.mark.parametrize("sizes", [("--nodes", 1, "--slots", 2), ("--nodes", 2, "--slots", 1)])
def test_run_reaches_no_run_at_the_same_time(
    cli: Cli,
    project: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    sizes: tuple[object, ...],
) -> None:
    cli.run("local", "down")
    cli.ok("local", "up", *sizes)
    monkeypatch.setenv("TOKEN", "secret of another run")
    victim = project("victim", _WAITS.format(120), _SECRET)
    recipe = _RECIPE.replace("train.py", "train.py of-the-victim") + _SECRET
    (victim / "train.yaml").write_text(recipe, encoding="utf-8")
    run_id = cli.json("train", victim, "--detach")["run_id"]
    until(lambda: "begun" in cli.run("logs", run_id).stdout, timeout_s=120)
    assert _outputs(cli, project("attacker", _SEARCHES)) == []
    cli.ok("cancel", run_id)


_STAYS = """
import os, pathlib, signal, subprocess, sys, time
alive = pathlib.Path(os.environ["AZ_BATCH_NODE_SHARED_DIR"], "alive")
if os.environ["RUNNER_ATTEMPT"] == "1":
    loop = f"while True: pathlib.Path({str(alive)!r}).touch(); time.sleep(0.02)"
    words = ["-c", "import pathlib, time\\n" + loop]
    inside = ["unshare", "-Ur"] if sys.argv[1:] else []
    null = subprocess.DEVNULL
    subprocess.Popen([*inside, sys.executable, *words], env={"PATH": os.environ["PATH"]}, cwd="/",
                     stdin=null, stdout=null, stderr=null, start_new_session=True)
    while not alive.exists():
        time.sleep(0.02)
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)
before = alive.stat().st_mtime_ns
time.sleep(1)
changed = before != alive.stat().st_mtime_ns
pathlib.Path(os.environ["RUNNER_OUTPUT_DIR"], "changed.json").write_text(str(changed).lower())
alive.unlink()
"""


@pytest.mark.attack
@pytest.mark.parametrize("nested", ["", " nested"])
def test_process_that_a_script_left_does_not_meet_the_next_attempt(
    cli: Cli, project: Callable[..., Path], nested: str
) -> None:
    folder = project("stays", _STAYS)
    recipe = _RECIPE.replace("train.py", f"train.py{nested}") + "retries: 1\n"
    (folder / "train.yaml").write_text(recipe, encoding="utf-8")
    assert _outputs(cli, folder) is False
