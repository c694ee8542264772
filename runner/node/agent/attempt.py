"""One attempt: the stages of a run in order, on this node."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shlex
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from runner.node.agent.attempt_checkpoints import SNAPSHOTS_FOLDER, AttemptCheckpoints
from runner.node.agent.preparation import NodePreparation
from runner.node.agent.records import FINISHED_FILE, FinishedScript
from runner.node.checkpoints.restore import RestoredCheckpoint
from runner.node.cluster import (
    LAUNCHER_VARIABLES,
    SINGLE_NODE,
    ClusterSpec,
    node_environment,
    single_node_environment,
)
from runner.node.distributed.launchers import (
    LAUNCH_FOLDER,
    PROCESSES_VARIABLE,
    Launch,
    NodePlace,
    count_processes,
    plan_launch,
    write_launch_files,
)
from runner.node.environment.virtual_env import EnvironmentBuilder
from runner.node.failures import (
    EvictedError,
    StageFailedError,
    disk_full_line,
    full_disk_text,
)
from runner.node.inputs.data_cache import DataCache, node_lock
from runner.node.inputs.stage import (
    INPUT_VARIABLE_PREFIX,
    InputAccess,
    InputFetch,
    fetch_inputs,
)
from runner.node.script import command
from runner.node.script.code_text import CodeText
from runner.node.script.command import SCRIPT_OF_VARIABLE
from runner.node.script.hangs import HangWatch, dump_stacks
from runner.node.script.live_outputs import LiveOutputs
from runner.node.script.metrics import wanted_metrics
from runner.node.script.outputs import (
    OutOfTimeError,
    add_earlier_outputs,
    check_promised,
    export_outputs,
    export_partial,
    rank_folder,
    read_list,
    read_rank_list,
    restore_outputs,
    write_list,
)
from runner.node.script.streams import EventLog, Streams
from runner.node.script.workspace import (
    HOOKS_FOLDER,
    AttemptDirs,
    compilation_variables,
    compiled_folder,
    python_path,
    stacks_file,
    unpack_code,
    write_shell_file,
    written_paths_file,
)
from runner.node.script.written import HOME, TEMP, Collected, WrittenFiles, shortened
from runner.node.settings import NodeSettings
from runner.node.storage.blobs import ContainerClient
from runner.node.storage.http import StorageRequestError
from runner.node.storage.retries import RetryBudget
from runner.node.termination import Termination
from runner.protocol.paths import RunPaths
from runner.protocol.results import LeftOut, OutputFile
from runner.protocol.run_spec import MPI_LAUNCHERS, PROCESS_LAUNCHERS, RunSpec, expand_variables
from runner.protocol.task import AGENT_FILE, CODE_ARCHIVE, NOTEBOOK_STOPPED, WORKER_LOG

if TYPE_CHECKING:
    from runner.node.agent.sweep_trial import SweepTrial
    from runner.node.distributed.node_group import NodeGroup
    from runner.node.distributed.remote_launch import LaunchRequests

logger = logging.getLogger(__name__)

PREPARE_STAGE = "prepare"
LOCK_FILE = "agent.lock"  # in the task's working directory: lock of the agent that runs the task
# Files and folders of the agent, beside the folders of the attempt.
AGENT_FILES = (
    HOOKS_FOLDER,
    WORKER_LOG,
    FINISHED_FILE,
    "finished.part",
    LOCK_FILE,
    SNAPSHOTS_FOLDER,
    AGENT_FILE,
    CODE_ARCHIVE,
    "inputs",
)
STDERR_TAIL_BYTES = 4096
MIN_LIMIT_S = 0.001  # of a time limit, because 0 means no limit
LIST_RESERVE_S = 0.5  # kept for writing the list of outputs when the attempt is terminated
NO_CHECKPOINTS_NOTICE = (
    "the script saves no checkpoints, so an eviction restarts it from the beginning: save its "
    "state to $RUNNER_CHECKPOINT_DIR, and load it from there at the start"
)
SEVERAL_NODES_NOTICE = (
    "on several nodes, frameworks save no checkpoints by themselves, so an eviction restarts the "
    "script from the beginning: let rank 0 save its state to $RUNNER_CHECKPOINT_DIR, and load it "
    "from there on all ranks"
)
# The end of a traceback in stderr; the script may print something after it.
# At the start of a line after a traceback, in parentheses after `python -m`, as by torchrun.
_MISSING_MODULE = re.compile(
    r"(?m)(?:^|module specification for '[\w.]+' \()"
    r"ModuleNotFoundError: No module named '([A-Za-z_]\w{0,80})"
)
# The last line that `runner.hooks.notebook` prints when a cell fails.
_STOPPED_NOTEBOOK = re.compile(rf"(?m)^{re.escape(NOTEBOOK_STOPPED)}(.+)$")
MAX_COMMAND_CHARS = 80  # of a process in a notice
MAX_SEARCH_S = 600.0  # for files that the script wrote elsewhere, if nothing else limits it


def read_tail(path: Path) -> str:
    """Return the end of a log as text, "" if there is none."""
    if not path.is_file():
        return ""
    with path.open("rb") as source:
        source.seek(max(path.stat().st_size - STDERR_TAIL_BYTES, 0))
        return source.read().decode("utf-8", errors="replace").rstrip()


def _collect_written(written: WrittenFiles, within_s: float | None) -> Collected:
    """Return the files that the script wrote elsewhere.

    If the search fails or takes longer than `within_s`, the result has only one entry, which says
    that files were left out.
    """
    found: list[Collected] = []

    def search() -> None:
        try:
            # The search ends a little early, so that it can return the files it found.
            found.append(written.collect(None if within_s is None else within_s * 0.8))
        except Exception:
            logger.exception("the files beside the script could not be searched for")

    # In a thread: a file system that does not answer blocks its caller for ever.
    thread = threading.Thread(target=search, name="written files", daemon=True)
    thread.start()
    thread.join(MAX_SEARCH_S if within_s is None else within_s)
    if found:
        return found[0]
    return Collected(left_out=(LeftOut("files beside the script", 0, "search"),))


def _named_inputs(written: WrittenFiles, prepared: Mapping[str, str]) -> dict[str, str]:
    """Return the folders of inputs, by the variables of other systems that the script reads.

    For example, SM_CHANNEL_TRAIN for the input `train`.
    """
    return {
        variable: prepared[INPUT_VARIABLE_PREFIX + name]
        for variable, name in written.named_inputs().items()
        if INPUT_VARIABLE_PREFIX + name in prepared
    }


def _account_variables(inherited: Mapping[str, str], work_dir: Path) -> dict[str, str]:
    """Return HOME and LOGNAME where the user of the container has none of its own.

    Batch runs a container as the user of the task, whom the image does not know. Scripts write
    caches to HOME, and `getpass.getuser()`, which PyTorch calls, fails without a name.
    Source: nextflow-io/nextflow#2126.
    """
    import pwd  # noqa: PLC0415  only runs in containers need it

    added: dict[str, str] = {}
    if not os.access(inherited.get("HOME") or "/", os.W_OK):
        added["HOME"] = str(work_dir)
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        added["LOGNAME"] = inherited.get("LOGNAME") or inherited.get("USER") or "runner"
    return added


def _preparation_error(how: str) -> StageFailedError:
    message = f"`prepare` on this node {how}"
    return StageFailedError(PREPARE_STAGE, "PreparationFailed", message)


class Attempt:
    """The stages of an attempt.

    Each stage raises StageFailedError if it fails, and TerminatedError if the task has to end.
    """

    def __init__(
        self,
        node: NodeSettings,
        spec: RunSpec,
        number: int,
        dirs: AttemptDirs,
        *,
        events: EventLog,
        retry_budget: RetryBudget,
        termination: Termination,
        checkpoints: AttemptCheckpoints,
    ) -> None:
        self._node = node
        self._spec = spec
        self.number = number
        self._dirs = dirs
        self.events = events
        self._retry_budget = retry_budget
        self._termination = termination
        self._checkpoints = checkpoints
        self.finished: FinishedScript | None = None
        self.streams: Streams | None = None
        self.live: LiveOutputs | None = None
        self.trial: SweepTrial | None = None
        self._written: WrittenFiles | None = None
        self._collected: Collected | None = None
        self._not_uploaded: list[LeftOut] = []
        # The name is derived from the task's folder, so that later attempts find and remove it. It
        # is below the system's temporary folder because paths of sockets must be short.
        digest = hashlib.sha256(str(node.work_dir).encode()).hexdigest()
        self._own_temp = Path(tempfile.gettempdir(), f"run-{digest[:12]}")
        self._temp: Path | None = None
        self._hung = ""  # the error message if the script stopped making progress
        self._began = 0.0  # when the stages began that the time limit applies to

    @property
    def spec(self) -> RunSpec:
        """The run specification. That of a trial changes when its parameters are decided."""
        return self._spec

    def set_up(self, access: InputAccess) -> dict[str, str]:
        """Run the stages `code` to `inputs`. Return the variables that they add for the script."""
        shutil.rmtree(self.launch_folder, ignore_errors=True)  # of an earlier attempt
        with self.events.stage("code", "unpacking the code"):
            archive = self._node.work_dir / CODE_ARCHIVE
            unpack_code(archive, self._dirs.code, self._spec.code.sha256)
        self._termination.check()
        variables = {"VIRTUAL_ENV": str(self._environment())}
        self._termination.check()
        data = self._spec.data
        if data is not None and data.prefix:
            with self.events.stage("data", "downloading the data set") as report:
                root = self._node.shared_dir / "runner" / "data"
                cache = DataCache(
                    access.data.transport, root, self._retry_budget, report, self._termination.check
                )
                folder = cache.ensure(data.prefix, data.files)
            variables["RUNNER_DATA_DIR"] = str(folder)
        if self._spec.inputs:
            self._termination.check()
            with self.events.stage("inputs", "downloading the inputs") as report:
                fetch = InputFetch(
                    access,
                    self._node.shared_dir,
                    self._node.work_dir,
                    self._retry_budget,
                    report,
                    self._termination.check,
                )
                variables |= fetch_inputs(fetch, self._spec.inputs)
        return variables

    def resume(self) -> dict[str, str]:
        """Run the stage `restore`. Return the variables that it adds for the script."""
        self._termination.check()
        return self._checkpoints.restore()

    def decide_params(self) -> None:
        """Run the stage `sample` if the run is a trial whose parameters are not decided yet."""
        self._termination.check()
        if self.trial is not None:
            shared, check = self._node.shared_dir, self._termination.check
            self._spec = self.trial.decide(shared, self.events, check)

    @property
    def stopped_early(self) -> str | None:
        """Why the sweep stopped this trial, or None."""
        return self.trial.stopped if self.trial is not None else None

    def _environment(self) -> Path:
        spec, code, shared = self._spec, self._dirs.code, self._node.shared_dir
        check = self._termination.check
        with self.events.stage("environment", "preparing the Python environment") as report:
            if spec.image is not None:
                from runner.node.environment.image_env import (  # noqa: PLC0415
                    ImageEnvironment,
                )

                inside = ImageEnvironment(shared, spec.image, report, check)
                file, pins = spec.requirements_file, spec.constraints
                return inside.ensure(code, file, spec.code.sha256, pins, spec.packages)
            builder = EnvironmentBuilder(shared, report, check)
            return builder.ensure(
                code,
                spec.requirements_file,
                spec.python,
                spec.code.sha256,
                constraints=spec.constraints,
                packages=spec.packages,
            )

    @property
    def restored(self) -> RestoredCheckpoint | None:
        """The checkpoint that the attempt resumed from, or None."""
        return self._checkpoints.restored

    def run(
        self,
        inherited: Mapping[str, str],
        prepared: Mapping[str, str],
        cluster: ClusterSpec | None = None,
        node_group: NodeGroup | None = None,
        *,
        rank: int = 0,
    ) -> None:
        """Run the stages `prepare` and `command`; the time limit applies to both together.

        Args:
            inherited: the environment of the agent.
            prepared: further variables, from `set_up`.
            cluster: the nodes of the run, if it has several.
            node_group: the run's other nodes, if this node is the primary of several.
            rank: the rank of this node. Only rank 0, the primary, enforces the time limit of the
                command.
        """
        if self._spec.image is not None:
            inherited = {**inherited, **_account_variables(inherited, self._node.work_dir)}
        folder = self.launch_folder
        place = NodePlace(rank, self.count_processes(inherited), folder, cluster)
        prepared = {**prepared, PROCESSES_VARIABLE: str(place.processes)}
        if cluster is not None:
            prepared |= node_environment(cluster, rank)
        elif self._spec.launcher in LAUNCHER_VARIABLES:
            prepared |= single_node_environment(self._spec.launcher)
        temp = self._make_temp(inherited)
        written = self._watch_files(inherited)
        named = {**temp, **written.named_outputs(), **_named_inputs(written, prepared)}
        automatic = self._is_automatic(written.code_text)
        environment = self._script_environment(inherited, prepared, named, automatic=automatic)
        write_shell_file(self._dirs.logs, environment, self._spec.secret_names)
        self._began = time.monotonic()
        if self._spec.prepare:
            self._prepare_node(self._spec.prepare, environment, node_group)
        with self.events.stage("command", shlex.join(self._spec.command)):
            checkpoints = self._checkpoints
            words = self._expanded_command(environment)
            launch = self._plan_launch(words, place, environment)
            environment |= launch.environment
            if self.streams is not None and self._prints_metrics(written):
                self.streams.search_stdout(wanted_metrics(self._spec))
            written.begin(words)
            watch = None if rank else self.hang_watch()  # the primary watches all ranks
            requests = self._connect(place, node_group)
            self._written = written
            self._start_observers()
            try:
                ended = command.run_command(
                    launch.words,
                    cwd=self._dirs.code,
                    environment={**environment, SCRIPT_OF_VARIABLE: str(self._node.work_dir)},
                    stdout=self._dirs.stdout,
                    stderr=self._dirs.stderr,
                    timeout_s=None if rank else self._left_s(),
                    terminated=lambda: (
                        self._must_stop(node_group) or self._is_hung(watch, node_group)
                    ),
                    grace_s=lambda: checkpoints.grace_s,
                    on_start=checkpoints.start,
                    writers=checkpoints.writers,
                )
            except BaseException:
                checkpoints.finish(None)
                raise
            finally:
                self._end_observers()
                if requests is not None:
                    requests.stop()
            checkpoints.finish(ended)
            self._termination.check()
            if self._is_stopped_early(ended):
                return
            self._check_stop(ended, node_group)
            self._check_end(ended)
        if self.finished is not None and self.streams is not None:
            where = Path(prepared["VIRTUAL_ENV"])
            self.finished.save(self.number, where, self.collect(), self.streams)

    def _prints_metrics(self, written: WrittenFiles) -> bool:
        """Return True if stdout may be the only place of the script's metrics."""
        return not (self._spec.metric_patterns or written.mentions("RUNNER_METRICS_FILE"))

    def _start_observers(self) -> None:
        if self.live is not None:
            self.live.start()

    def _end_observers(self) -> None:
        if self.live is not None:
            self.live.finish()
        if self.trial is not None:
            self.trial.close()

    def _is_stopped_early(self, ended: command.ScriptResult) -> bool:
        """Return True if the sweep ended the script, and not an eviction or a hang."""
        if not (ended.stopped and self.stopped_early):
            return False
        if self._checkpoints.must_stop or self._hung:
            return False
        self.events.summarise(f"stopped early: {self.stopped_early}")
        return True

    def _check_stop(self, ended: command.ScriptResult, node_group: NodeGroup | None) -> None:
        """Raise the cause if the agent stopped the command: a hang, another node, an eviction."""
        if self._hung:
            raise StageFailedError(command.COMMAND_STAGE, "Hung", self._hung)
        if node_group is not None:
            node_group.check_results(ended)
        if ended.stopped:
            raise EvictedError

    def hang_watch(self) -> HangWatch | None:
        """Return a watch of this node's script, or None if the recipe sets no `hang_timeout`."""
        limit_s = self._spec.hang_timeout_s
        return HangWatch(self._dirs, limit_s) if limit_s else None

    def _is_hung(self, watch: HangWatch | None, node_group: NodeGroup | None) -> bool:
        """Return True if no node has progressed within the limit. Dump the stacks before."""
        if watch is None or self._hung:
            return bool(self._hung)
        if watch.idle_s() < watch.limit_s:
            return False
        stalled_s, first = (
            node_group.find_stalled() if node_group is not None else (watch.limit_s, "")
        )
        if stalled_s < watch.limit_s:
            return False
        what = "the script" if node_group is None else "every node"
        text = f"{what} stopped: no log line, metric or checkpoint for {watch.limit_s:.15g} s"
        if first and stalled_s < float("inf"):
            text += f"; {first} was the first worker to stop"
        self.events.add("notice", "failed", text)
        if node_group is not None:
            node_group.dump_stacks(text)
        self.dump_stacks(text)
        self._hung = f"{text}; stderr ends with the stacks of all processes"
        return True

    def dump_stacks(self, text: str) -> None:
        """Write the stacks of the script's processes on this node to its standard error."""
        count = dump_stacks(stacks_file(self._node.work_dir), self._dirs.stderr, text)
        logger.info("wrote the stacks of %d processes", count)

    def count_processes(self, inherited: Mapping[str, str]) -> int:
        """Return how many processes the launcher starts on this node."""
        if self._spec.launcher not in PROCESS_LAUNCHERS:
            return 1
        return count_processes(self._spec, {**inherited, **self._spec.env})

    @property
    def launch_folder(self) -> Path:
        """The folder of the files that the launcher needs."""
        return self._node.work_dir / HOOKS_FOLDER / LAUNCH_FOLDER

    def _connect(self, place: NodePlace, node_group: NodeGroup | None) -> LaunchRequests | None:
        """Let checkpoints and mpirun use the other nodes, if there are any.

        Returns:
            The started requests of mpirun, which the caller stops, or None without mpirun.
        """
        if node_group is None:
            return None
        self._checkpoints.collect_shards = node_group.collect_shards
        if self._spec.launcher not in MPI_LAUNCHERS:
            return None
        from runner.node.distributed.remote_launch import LaunchRequests  # noqa: PLC0415

        requests = LaunchRequests(place.folder, node_group.launch)
        node_group.on_launch_end = requests.end
        requests.start()
        return requests

    def _plan_launch(
        self, words: Sequence[str], place: NodePlace, environment: Mapping[str, str]
    ) -> Launch:
        launcher = self._spec.launcher
        if launcher not in PROCESS_LAUNCHERS:
            return Launch(tuple(words))
        if launcher in MPI_LAUNCHERS:
            if shutil.which("mpirun", path=environment["PATH"]) is None:
                raise StageFailedError(
                    command.COMMAND_STAGE,
                    "CommandNotFound",
                    f"mpirun, which the launcher {launcher} uses, is not on this node: add the "
                    "package openmpi to the requirements, or install Open MPI with `prepare`",
                    command.NOT_FOUND_EXIT_CODE,
                )
            write_launch_files(words, self._dirs.code, place)
        return plan_launch(self._spec, self.number, words, place)

    def _prepare_node(
        self, script: str, environment: Mapping[str, str], node_group: NodeGroup | None
    ) -> None:
        """Run the stage `prepare`, unless a task of the job prepared this node for all of them.

        The output of the commands goes to the run's stderr.

        Args:
            script: the shell commands.
            environment: the environment of the commands, the same as that of the script.
            node_group: as for `run`.
        """
        own = [self._node.work_dir, *([self._temp] if self._temp else ())]
        preparation = NodePreparation(self._node, self._spec, own)
        with self.events.stage(PREPARE_STAGE, "preparing the node") as report:

            def while_waiting() -> None:
                report("another task is preparing the node")
                self._termination.check()
                if self._left_s() == MIN_LIMIT_S:
                    raise _preparation_error(
                        "waited for that of another task until the time limit of "
                        f"{self._spec.timeout_s:.15g} s"
                    )

            with node_lock(preparation.lock, while_waiting):
                if preparation.is_done():
                    report("the node is prepared")
                    return
                with preparation.record(self.events.summarise):
                    ended = command.run_command(
                        ("/bin/sh", "-e", "-c", script),
                        cwd=self._dirs.code,
                        environment={**environment, SCRIPT_OF_VARIABLE: str(self._node.work_dir)},
                        stdout=self._dirs.stderr,
                        stderr=self._dirs.stderr,
                        timeout_s=self._left_s(),
                        terminated=lambda: self._must_stop(node_group),
                    )
                    self._check_prepared(ended, node_group)

    def _check_prepared(self, ended: command.ScriptResult, node_group: NodeGroup | None) -> None:
        self._termination.check()
        if ended.stopped:
            if node_group is not None:
                node_group.check_results(ended)
            raise EvictedError
        if ended.timed_out:
            limit = f"the time limit of {self._spec.timeout_s:.15g} s"
            raise _preparation_error(f"was stopped after {limit}")
        if ended.exit_code:
            raise _preparation_error(f"exited with code {ended.exit_code}")

    def _left_s(self) -> float | None:
        """Return the seconds left of the time limit, at least MIN_LIMIT_S; None without a limit."""
        limit_s = self._spec.timeout_s
        return limit_s and max(limit_s - (time.monotonic() - self._began), MIN_LIMIT_S)

    def _watch_files(self, inherited: Mapping[str, str]) -> WrittenFiles:
        home, dirs, node = Path(inherited.get("HOME") or "/"), self._dirs, self._node
        places: dict[str, Path] = {}
        # HOME belongs to this task alone if it is the working directory, or is in a container.
        if home == node.work_dir or (self._spec.image is not None and home != Path("/")):
            places[HOME] = home
        if self._temp is not None:
            places[TEMP] = self._temp
        agent_paths = [node.work_dir / name for name in AGENT_FILES]
        agent_paths += [node.work_dir.parent / name for name in ("stdout.txt", "stderr.txt")]
        agent_paths += [dirs.checkpoints, dirs.logs, node.shared_dir]
        if given := inherited.get("AZ_BATCH_NODE_MOUNTS_DIR"):
            agent_paths += [mounts := Path(given), *mounts.glob("*")]  # a mount may be a link
        agent_paths.append(compiled_folder(node.shared_dir))  # the cache may be a link
        root = inherited.get("AZ_BATCH_NODE_ROOT_DIR")
        shared = [Path(root)] if root else []
        recorded = written_paths_file(node.work_dir)
        return WrittenFiles(
            dirs.code,
            dirs.output,
            places,
            agent_paths,
            self._spec,
            shared=shared,
            recorded=recorded,
            inherited=inherited,
        )

    def remove_temp(self) -> None:
        """Remove the temporary files of the script, also those of an attempt that was killed."""
        for folder in {self._own_temp, self._temp or self._own_temp}:
            shutil.rmtree(folder, ignore_errors=True)

    def _make_temp(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """Create a folder for temporary files, so that the agent knows which are the script's.

        Returns:
            TMPDIR for the script; nothing if a folder is set already or none can be created.
        """
        self.remove_temp()
        if not {"TMPDIR", "TEMP", "TMP"}.isdisjoint({*inherited, *self._spec.env}):
            return {}
        try:
            try:
                self._own_temp.mkdir(mode=0o700)
                self._temp = self._own_temp
            except FileExistsError:  # owned by another user
                self._temp = Path(tempfile.mkdtemp(prefix="run-"))
        except OSError as err:
            logger.warning("no folder for temporary files: %s", err)
            return {}
        return {"TMPDIR": str(self._temp)}

    @property
    def left_out(self) -> tuple[LeftOut, ...]:
        """The files that the script wrote and that are not kept, as far as they are known."""
        return (*self.collect().left_out, *shortened(self._not_uploaded))

    def leave_out(self, entry: LeftOut) -> None:
        """Record a file that is not kept."""
        entry = replace(entry, path=entry.path.encode(errors="replace").decode())
        self._not_uploaded.append(entry)
        self.events.add("notice", "progress", f"not kept: {entry}")

    def collect(self, within_s: float | None = None) -> Collected:
        """Return the files that the script wrote outside `$RUNNER_OUTPUT_DIR`.

        The first call searches for them. A failed search is not an error, because the recipe does
        not promise these files.

        Args:
            within_s: the time limit of the search. After it, the result is empty. None uses the
                time that is left to the agent.
        """
        if self._collected is None and self._written is not None:
            left_s = self._retry_budget.left_s if within_s is None else within_s
            self._collected = _collect_written(self._written, left_s)
            for each in self._collected.left_out:
                self.events.add("notice", "progress", f"not kept: {each}")
        if self._collected is None and self.finished is not None:
            return self.finished.collected or Collected()
        return self._collected or Collected()

    def _expanded_command(self, environment: Mapping[str, str]) -> list[str]:
        """Return the command with variables replaced by their values.

        Write the parameters, with variables replaced likewise, to $RUNNER_PARAMS.
        """
        try:
            params = {
                name: expand_variables([value], environment)[0] if isinstance(value, str) else value
                for name, value in self._spec.params.items()
            }
            self._dirs.params.write_text(json.dumps(params), encoding="utf-8")
            return expand_variables(self._spec.command, environment)
        except KeyError as err:
            raise StageFailedError(
                command.COMMAND_STAGE,
                "VariableMissing",
                f"the command refers to ${err.args[0]}, which is not set on the node",
            ) from None

    def _must_stop(self, node_group: NodeGroup | None) -> bool:
        if self._termination.requested or self._checkpoints.must_stop or self.stopped_early:
            return True
        return node_group is not None and node_group.failed

    def export(
        self, runs: ContainerClient, blobs: RunPaths, node_group: NodeGroup | None = None
    ) -> list[OutputFile]:
        """Run the stage `export`; `node_group` as for `run`. Return all exported files."""
        prefix = blobs.output(self.number)
        with self.events.stage("export", "exporting the outputs") as report:
            if self.stopped_early:
                return self.export_partial(runs, blobs, lambda: None, last=True)
            collected = self.collect()
            check_promised(self._dirs.output, self._spec.outputs, collected)
            check = self._termination.check
            outputs = export_outputs(
                runs, prefix, self._dirs.output, report, check, collected,
                promised=self._spec.outputs, leave_out=self.leave_out,
            )  # fmt: skip
            if node_group is not None:
                own = [output.path for output in outputs]
                folders = {rank: rank_folder(rank, own) for rank in node_group.workers}
                ranks = node_group.gather(lambda rank: {"prefix": prefix + folders[rank]}, report)
                for rank in ranks:
                    name = RunPaths(self._spec.run_id, rank).attempt_outputs(self.number)
                    listed = read_list(runs, name)
                    if listed is None:
                        raise ValueError(f"there is no {name}")
                    outputs += [replace(file, path=folders[rank] + file.path) for file in listed]
            return add_earlier_outputs(
                runs, blobs, self.number, outputs, check, self.leave_out, nodes=self._spec.nodes
            )

    def names_of_outputs(self) -> list[str]:
        """Return the names of files and folders that may become outputs."""
        names: list[str] = []
        for folder in (self._dirs.output, self._dirs.code):
            with suppress(OSError):
                names += os.listdir(folder)  # noqa: PTH208 - names
        return names

    def export_partial(
        self,
        runs: ContainerClient,
        blobs: RunPaths,
        left_s: Callable[[], float | None],
        *,
        last: bool,
        folder: str = "",
    ) -> list[OutputFile]:
        """Export the files of a script that did not succeed, as far as time allows.

        Args:
            runs: the container of runs.
            blobs: the names of the run's blobs.
            left_s: returns the seconds until this node or process ends, None if there is no end.
            last: True if the run ends with this attempt. Then the outputs that earlier attempts
                kept are added. Otherwise a list of the outputs is written for the next attempt.
            folder: the folder of this node's outputs, relative to the outputs of the run.
        """

        def check() -> None:
            left = left_s()
            if left is not None and left <= LIST_RESERVE_S:
                raise OutOfTimeError

        def save(outputs: Sequence[OutputFile]) -> None:
            if last:
                return
            try:
                write_list(runs, blobs.attempt_outputs(self.number), outputs, folder)
            except StorageRequestError as err:
                logger.warning("the list of the outputs is lost: %s", err)

        left = left_s()
        search_s = None if left is None else max(left - LIST_RESERVE_S, LIST_RESERVE_S)
        collected = self.collect(search_s)
        prefix = blobs.output(self.number) + folder
        outputs = export_partial(
            runs, prefix, self._dirs.output, collected, check, leave_out=self.leave_out, save=save
        )
        if not last:
            return outputs
        own = self.names_of_outputs()
        for rank in range(1, self._spec.nodes):
            outputs += read_rank_list(runs, self._spec.run_id, rank, self.number, own)
        return add_earlier_outputs(
            runs, blobs, self.number, outputs, check, self.leave_out, nodes=self._spec.nodes
        )

    def restore(
        self, runs: ContainerClient, prefix: str, outputs: list[OutputFile]
    ) -> list[OutputFile]:
        """Return the exported files that still exist; upload missing ones again."""
        return restore_outputs(
            runs, prefix, self._dirs.output, outputs, self.collect(),
            promised=self._spec.outputs, leave_out=self.leave_out,
        )  # fmt: skip

    def _check_end(self, ended: command.ScriptResult) -> None:
        """Raise StageFailedError if the script failed. Warn if it succeeded in a doubtful way."""
        shown = shlex.join(self._spec.command[: 3 if self._spec.command[1:2] == ("-m",) else 2])
        used_s = round(self.events.stages_s.get(PREPARE_STAGE, 0.0))
        if ended.timed_out:
            raise StageFailedError(
                command.COMMAND_STAGE,
                "Timeout",
                f"{shown} was stopped after its time limit of {self._spec.timeout_s:.15g} s"
                + (f", of which `prepare` took {used_s} s" if used_s else ""),
                command.TIMEOUT_EXIT_CODE,
            )
        if ended.exit_code > 128:
            how = f"{shown} was ended by signal {ended.exit_code - 128}"
        else:
            how = f"{shown} exited with code {ended.exit_code}"
        full = full_disk_text(self._dirs.output)
        if not ended.exit_code:
            if ended.left_running:
                first, count = ended.left_running[0], len(ended.left_running)
                others = f" and {count - 1} more" if count > 1 else ""
                self.events.add(
                    "notice",
                    "progress",
                    f"{shown} ended before {first[:MAX_COMMAND_CHARS]!r}{others}, which it had "
                    "started and which was stopped: let the command wait for what it starts",
                )
            if full:  # the script may have ignored errors of its writes
                self.events.add("notice", "progress", f"files may be incomplete: {full}")
            return
        tail = read_tail(self._dirs.stderr)
        if stopped := _STOPPED_NOTEBOOK.findall(tail):
            raise StageFailedError(
                command.COMMAND_STAGE, "NotebookCellFailed", stopped[-1], ended.exit_code
            )
        how += self._checkpoints.resumed_text + self._missing_module()
        # A full disk may have swallowed the script's error message. Conversely, the disk may have
        # room again because the script removed unfinished files: then its message tells.
        if full or (full := disk_full_line(tail)):
            raise StageFailedError(
                command.COMMAND_STAGE, "DiskFull", f"{how}: {full}", ended.exit_code
            )
        raise StageFailedError(command.COMMAND_STAGE, "CommandFailed", how, ended.exit_code)

    def _missing_module(self) -> str:
        """Return advice if a missing module ended the script, otherwise an empty string."""
        found = _MISSING_MODULE.search(read_tail(self._dirs.stderr))
        if found is None or any(self._dirs.code.glob(f"{found[1]}*")):
            return ""
        where = self._spec.requirements_file or "a requirements.txt beside the script"
        return f": no module {found[1]!r}; add its package to {where}"

    def _named_outputs(self) -> dict[str, str]:
        folders = {v: self._dirs.output / path for v, path in self._spec.named_outputs.items()}
        for folder in folders.values():
            folder.mkdir(parents=True, exist_ok=True)
        return {variable: str(folder) for variable, folder in folders.items()}

    def _is_automatic(self, code_text: CodeText) -> bool:
        """Return True if hooks may save checkpoints of the script.

        Write a notice if the script saves none and hooks cannot either.
        """
        rule = self._spec.checkpoints
        if rule is None:
            return False
        if self._spec.is_workspace:
            pass  # a person works on the node, so the code need not run
        elif code_text.trains_without_checkpoints and not self._node.dedicated:
            self.events.add("notice", "progress", NO_CHECKPOINTS_NOTICE)
        elif rule.automatic and self._spec.nodes > 1 and code_text.is_saved_by_hooks:
            self.events.add("notice", "progress", SEVERAL_NODES_NOTICE)
        # Hooks on several nodes would have to agree on the times of their checkpoints.
        return rule.automatic and self._spec.nodes == 1 and not code_text.saves_checkpoints

    def _script_environment(
        self,
        inherited: Mapping[str, str],
        prepared: Mapping[str, str],
        named: Mapping[str, str],
        *,
        automatic: bool,
    ) -> dict[str, str]:
        path = self._spec.env.get("PATH") or inherited.get("PATH", os.defpath)
        environment_dir = Path(prepared["VIRTUAL_ENV"])
        if not (environment_dir / "pyvenv.cfg").exists():  # an image's own Python
            prepared = {name: v for name, v in prepared.items() if name != "VIRTUAL_ENV"}
        bin_dir = environment_dir / "bin"
        given = self._spec.env.get("PYTHONPATH") or inherited.get("PYTHONPATH")
        rule = self._spec.checkpoints
        modules = python_path(
            given,
            self._node.work_dir,
            environment_dir,
            shared_dir=self._node.shared_dir,
            automatic=automatic,
            recorded=self._spec.keep is not None,
            stacks=self._spec.hang_timeout_s is not None,
        )
        return {
            **compilation_variables(self._node.shared_dir),
            **named,
            **inherited,
            **self._spec.env,
            **SINGLE_NODE,
            **prepared,
            "PYTHONPATH": modules,
            "PATH": f"{bin_dir}{os.pathsep}{path}",
            "RUNNER_RUN_ID": self._spec.run_id,
            "RUNNER_ATTEMPT": str(self.number),
            "RUNNER_OUTPUT_DIR": str(self._dirs.output),
            **self._named_outputs(),
            "RUNNER_CHECKPOINT_DIR": str(self._dirs.checkpoints),
            **({"RUNNER_CHECKPOINT_INTERVAL": f"{rule.interval_s:g}"} if rule else {}),
            "RUNNER_METRICS_FILE": str(self._dirs.metrics),
            "RUNNER_PARAMS": str(self._dirs.params),
            "RUNNER_SECRET_NAMES": " ".join(sorted(self._spec.secret_names)),
        }
