"""Choose the folder of each training, and print messages to the user.

$RUNNER_CHECKPOINT_DIR/automatic/<key>-<k>/claim-<run>-<attempt>    pid of the process
$RUNNER_CHECKPOINT_DIR/automatic/<key>-<k>/variables                digests of the key's parts
$RUNNER_CHECKPOINT_DIR/automatic/<key>-1/parallel                   several ran at the same time
$RUNNER_CHECKPOINT_DIR/automatic/<key>-<k>/keras-1-<settings>/...   the first call of fit

A training must never start from the state of another one. Therefore the key is a digest of the
command line and of the variables that the script has set for this process, k counts the processes
with this key in one attempt, and the settings of the training are part of the name. Processes with
the same key that run at the same time do not resume: their order may differ in the next attempt.
"""

from __future__ import annotations

import functools
import hashlib
import json
import multiprocessing
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

_Class = TypeVar("_Class", bound=type)

FOLDER_VARIABLE = "RUNNER_CHECKPOINT_DIR"
FOLDER = "automatic"
VARIABLES = "variables"  # a file with digests of the command and of each variable
SWITCH = "`checkpoints: {automatic: false}` in train.yaml switches this off"
ADVICE = "save its state to $RUNNER_CHECKPOINT_DIR, and load it from there at the start"
SCRIPT_OF = b"RUNNER_SCRIPT_OF="  # of `runner.node.script.command`
# Variables of shells and launchers, whose values differ between attempts.
_VOLATILE = re.compile(
    r"_|SHLVL|PWD|OLDPWD|MASTER_.*|TORCHELASTIC_.*|RANK|LOCAL_.*|GROUP_.*|ROLE_.*|WORLD_SIZE"
    r"|NODE_RANK|ACCELERATE_.*|FORK_LAUNCHED|JPY_.*|COLUMNS|LINES|WINDOWID|SSH_.*"
)
MAX_TRAININGS = 50  # of one framework in a process; the state of each is kept

_process_folders: dict[int, Path | None] = {}  # by pid, because a fork inherits them
_adopted = False
_counts: dict[str, int] = {}
_said: set[str] = set()


def say(text: str) -> None:
    """Print a line for the user, once per process."""
    if text not in _said:
        _said.add(text)
        sys.stderr.write(f"runner: {text}\n")
        sys.stderr.flush()


def warn(adapter: str, err: BaseException) -> None:
    """Report that the training continues without checkpoints."""
    reason = " ".join(str(err).split())[:300]
    say(
        f"automatic checkpoints of {adapter} are off, and the training continues without: "
        f"{type(err).__name__}: {reason}"
    )


def say_start(what: str, resumed: str = "") -> None:
    """Report that a training is saved, and the point from which it resumes."""
    if resumed:
        say(f"{what} resumes {resumed}")
    say(f"{what} is saved at intervals, and resumes after an eviction; {SWITCH}")


def say_several() -> None:
    """Report that a training on several processes or devices is not saved."""
    say(f"a training on several processes is not saved by itself: {ADVICE}")


def _guarded(adapter: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a callback's method whose first error becomes a warning and turns the callback off.

    The callback has the attributes `is_off` and `sigterm`, a DeferredSigterm.
    """

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.is_off:
            return None
        requested = self.sigterm.requested
        try:
            return method(self, *args, **kwargs)
        except Exception as err:
            if requested and not self.sigterm.requested:
                raise  # from the script's own handler of SIGTERM
            self.is_off = True
            warn(adapter, err)
            self.sigterm.remove()

    return call


def guarding(adapter: str, names: Iterable[str]) -> Callable[[_Class], _Class]:
    """Return a decorator of a callback's class that guards the methods with these names."""

    def guard(callback: _Class) -> _Class:
        for name in names:
            setattr(callback, name, _guarded(adapter, getattr(callback, name)))
        return callback

    return guard


def checkpoint_root() -> Path | None:
    """Return $RUNNER_CHECKPOINT_DIR, or None if the script itself saves in it."""
    given = os.environ.get(FOLDER_VARIABLE)
    if not given:
        return None
    root = Path(given)
    foreign = [entry.name for entry in root.iterdir() if entry.name != FOLDER]
    return None if foreign else root


def is_distributed() -> bool:
    """Return True if the environment describes several processes that train together."""
    sizes = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "RUNNER_NODES")
    return any(os.environ.get(name, "1") != "1" for name in sizes) or _has_tensorflow_cluster()


def _has_tensorflow_cluster() -> bool:
    """Return True if TF_CONFIG names other processes than this one."""
    text = os.environ.get("TF_CONFIG")
    if text is None:
        return False
    try:
        cluster = json.loads(text)["cluster"]
        return sum(len(tasks) for tasks in cluster.values()) > 1
    except (ValueError, LookupError, TypeError, AttributeError):
        return True


def is_on_several_nodes() -> bool:
    """Return True if the ranks do not share one folder of checkpoints."""
    return os.environ.get("RUNNER_NODES", "1") != "1"


def is_inside(path: str | os.PathLike[str]) -> bool:
    """Return True for a path in $RUNNER_CHECKPOINT_DIR."""
    root = os.path.realpath(os.environ.get(FOLDER_VARIABLE) or os.devnull)
    return f"{os.path.realpath(path)}/".startswith(f"{root}/")


def training_folder(kind: str, settings: Any, *, of_ranks: bool = False) -> Path | None:
    """Return the folder of the next training of this kind in this process, or None.

    Args:
        kind: the framework.
        settings: values that distinguish trainings, such as those of the optimizer.
        of_ranks: True on rank 0 of a training on several processes of this node.
    """
    base = process_folder(of_ranks=of_ranks)
    if base is None:
        return None
    number = _counts[kind] = _counts.get(kind, 0) + 1
    if number > MAX_TRAININGS:
        say(
            f"only the first {MAX_TRAININGS} trainings of a script are saved, and an eviction "
            f"repeats the others: {ADVICE}"
        )
        return None
    text = json.dumps(settings, sort_keys=True, default=lambda value: type(value).__name__)
    folder = base / f"{kind}-{number}-{digest(text)}"
    others = list(base.glob(f"{kind}-{number}-*"))
    if _adopted and len(others) == 1 and others[0] != folder:
        others[0].rename(folder)  # after `runner resume` with other parameters
    return folder


def process_folder(*, of_ranks: bool = False) -> Path | None:
    """Return the folder of this process, or None. No other process uses it in this attempt."""
    pid = os.getpid()
    if pid not in _process_folders:
        _counts.clear()
        root = checkpoint_root()
        is_one_of_several = is_distributed() and not of_ranks
        if root is not None and (is_one_of_several or multiprocessing.parent_process() is not None):
            say_several()
            root = None
        _process_folders[pid] = None if root is None else _claim(root / FOLDER)
    return _process_folders[pid]


def _claim(root: Path) -> Path | None:
    """Return the next folder for this command line, or None if several processes run it at once."""
    global _adopted  # noqa: PLW0603 - one value for the process
    name = f"claim-{os.environ.get('RUNNER_RUN_ID')}-{os.environ.get('RUNNER_ATTEMPT')}"
    own = own_variables()
    key = digest("\0".join(_portable([*sys.argv, *own])))
    command = digest("\0".join(_portable([*sys.argv, *own[:1]])))
    pairs = (word.partition("=") for word in _portable(own[1:]))
    known = {VARIABLES: command, **{variable: digest(value) for variable, _, value in pairs}}
    _adopted = _adopt(root, key)
    parallel = root / f"{key}-1" / "parallel"  # moves with the folder if another run adopts it
    for k in range(1, 10_000):
        folder = root / f"{key}-{k}"
        if k == 1 and not folder.exists():
            with suppress(OSError, ValueError, AttributeError):  # the record is damaged
                _report_differences(root, known, name)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            if not parallel.exists():
                with (folder / name).open("x") as claim:
                    claim.write(str(os.getpid()))
        except FileExistsError:
            if not _is_held(folder / name):
                continue
            parallel.touch()
        if parallel.exists():
            say(
                "several processes with the same arguments and variables train at the same time, "
                f"so none of them resumes after an eviction: give each its own, or {ADVICE}"
            )
            return None
        for old in folder.glob("claim-*"):
            if old.name != name:
                old.unlink(missing_ok=True)
        (folder / VARIABLES).write_text(json.dumps(known))
        return folder
    raise RuntimeError("too many processes have the same command line")


def _report_differences(root: Path, known: dict[str, str], claim: str) -> None:
    """Report the variables that differ from an earlier attempt and prevent resuming from it."""
    for record in root.glob(f"*/{VARIABLES}"):
        earlier: dict[str, str] = json.loads(record.read_text() or "{}")
        if earlier.get(VARIABLES) == known[VARIABLES] and not (record.parent / claim).exists():
            names = sorted(each for each, _ in earlier.items() ^ known.items())
            names = [f"${each}" for each in dict.fromkeys(names)]
            say(f"not resumed: {', '.join(names)} differs from the earlier attempt")


def own_variables() -> list[str]:
    """Return the differences between this process's environment and that of the run's command.

    These are the relative working directory and variables, such as `FOLD=1` in
    `FOLD=1 python train.py`. The list is empty without /proc, or if a parent has ended.
    """
    try:
        first, pid = os.getpid(), os.getppid()
        while SCRIPT_OF in (environment := Path(f"/proc/{pid}/environ").read_bytes()):
            first = pid
            stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
            pid = int(stat.rpartition(")")[2].split()[1])
        if first == os.getpid():
            return []
        environment = Path(f"/proc/{first}/environ").read_bytes()
        own = Path("/proc/self/environ").read_bytes()
        changed = sorted({*own.split(b"\0")} - {*environment.split(b"\0")})
        folder = os.path.relpath(Path.cwd(), os.readlink(f"/proc/{first}/cwd"))  # noqa: PTH115
    except (OSError, ValueError, IndexError):
        return []
    words = [os.fsdecode(each) for each in changed]
    return [folder, *(w for w in words if not _VOLATILE.fullmatch(w.partition("=")[0]))]


def _is_held(claim: Path) -> bool:
    """Return True if the process that made the claim may be alive."""
    try:
        pid = int(claim.read_text())
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, ValueError, OverflowError):
        return True  # it belongs to another user, or is being written
    return pid != os.getpid()  # otherwise this process has replaced its program


def _adopt(root: Path, key: str) -> bool:
    """Rename the only folder for this key if another run created it. Return True if so.

    `runner resume` may have changed the arguments, and so the key.
    """
    found = sorted(root.glob("*-*")) if root.is_dir() else []
    ours = f"claim-{os.environ.get('RUNNER_RUN_ID')}-"
    if len(found) != 1 or any(one.name.startswith(ours) for one in found[0].glob("claim-*")):
        return False
    if found[0].name != f"{key}-1":
        found[0].rename(root / f"{key}-1")
    return True


def portable_path(path: str | os.PathLike[str]) -> str:
    """Return the path with folders that differ between nodes replaced by their variables."""
    return next(_portable([os.path.abspath(os.fspath(path))]))  # noqa: PTH100


def _portable(words: list[str]) -> Iterator[str]:
    if "ipykernel" in sys.modules:
        yield "notebook"  # its arguments are temporary files
        return
    places = {
        value: name
        for name, value in sorted(os.environ.items())
        if re.match(r"RUNNER_|AZ_BATCH_|AZUREML_|AZURE_ML_|TMPDIR$|HOME$|VIRTUAL_ENV$", name)
        and value.startswith("/")
        and len(value) > 4
    }
    places[os.getcwd()] = "."  # noqa: PTH109
    for word in words:
        for value in sorted(places, key=len, reverse=True):
            word = word.replace(value, f"${places[value]}")  # noqa: PLW2901
        yield word


def digest(text: str) -> str:
    """Return a short digest of the text, for a file name."""
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:12]


def mirror(source: Path, target: Path, last: str, names: set[str]) -> None:
    """Copy these files of `source` to `target`, and delete all others there.

    The file `last`, which refers to the others, is written last. So the files that it refers to are
    complete at any time.
    """
    target.mkdir(parents=True, exist_ok=True)
    for name in sorted(names - {last}):
        _link_or_copy(source / name, target / name)
    _link_or_copy(source / last, target / last)
    for old in target.iterdir():
        if old.name not in names:
            old.unlink()


def _link_or_copy(source: Path, target: Path) -> None:
    """Link a file, or copy it if linking is impossible. The file must not be written any more."""
    if target.exists() and target.stat().st_mtime_ns == source.stat().st_mtime_ns:
        return
    part = target.with_name(f".part-{os.getpid()}")
    try:
        try:
            os.link(source, part)
        except OSError:
            shutil.copy2(source, part)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
