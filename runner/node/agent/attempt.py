"""One attempt: the stages of a run in order, on this node."""

from __future__ import annotations

import json
import logging
import os
import re
import shlex
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from runner.node.checkpoints.committer import SNAPSHOTS_FOLDER, AttemptCheckpoints
from runner.node.checkpoints.load_failures import may_be_load_failure, read_error
from runner.node.cluster import (
    SINGLE_NODE,
    ClusterSpec,
    node_variables,
    single_node_variables,
)
from runner.node.context import TaskContext
from runner.node.distributed.launchers import (
    LAUNCH_FOLDER,
    PROCESSES_VARIABLE,
    Launch,
    NodePlace,
    count_processes,
    prepare_launch,
)
from runner.node.environment.virtual_env import (
    LAYER_FOLDER,
    Builder,
    EnvironmentBuilder,
    compile_later,
)
from runner.node.failures import (
    COMMAND_STAGE,
    PREPARE_STAGE,
    EvictedError,
    StageFailedError,
)
from runner.node.inputs.data_cache import DataCache
from runner.node.inputs.stage import (
    INPUT_VARIABLE_PREFIX,
    InputFetch,
    fetch_inputs,
)
from runner.node.script import command
from runner.node.script.code_text import CodeText
from runner.node.script.command import SCRIPT_OF_VARIABLE
from runner.node.script.context import AttemptContext
from runner.node.script.hangs import HangWatch, dump_stacks
from runner.node.script.outputs import (
    FINISHED_FILE,
    AttemptOutputs,
    FinishedScript,
    rank_folder,
)
from runner.node.script.protection import NODES_VARIABLE, protect_node
from runner.node.script.streams import Streams, wanted_metrics
from runner.node.script.workspace import (
    HOOKS_FOLDER,
    DiskReserve,
    TempFolder,
    compilation_variables,
    compiled_folder,
    disk_full_line,
    full_disk_text,
    hook_folders,
    own_script,
    python_path,
    stacks_file,
    unpack_code,
    write_shell_file,
    written_paths_file,
)
from runner.node.script.written import HOME, TEMP, WrittenFiles
from runner.node.storage.blobs import MAX_APPEND_BYTES, AppendBlob, BlobShrankError
from runner.node.storage.http import StorageRequestError
from runner.protocol.checkpoints import ResumeFailure
from runner.protocol.commands import expand_env, expand_variables
from runner.protocol.host import exclude_loopback, remove_tree
from runner.protocol.launchers import LAUNCHERS
from runner.protocol.results import OutputFile
from runner.protocol.task import (
    AGENT_FILE,
    CODE_ARCHIVE,
    NOTEBOOK_STOPPED,
    WORKER_LOG,
)

if TYPE_CHECKING:
    import subprocess

    from runner.node.agent.sweep_trial import SweepTrial
    from runner.node.devices.watch import DeviceWatch
    from runner.node.distributed.node_group import NodeGroup

logger = logging.getLogger(__name__)

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
    LAYER_FOLDER,
    "inputs",
)
STDERR_TAIL_BYTES = 4096
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
# As Python, the coreutils and most programs name a file that they may not write to.
_READ_ONLY = re.compile(r"Read-only file system: '(/[^'\n]+)'|'(/[^'\n]+)': Read-only file system")
# The last line that `runner.hooks.notebook` prints when a cell fails.
_STOPPED_NOTEBOOK = re.compile(rf"(?m)^{re.escape(NOTEBOOK_STOPPED)}(.+)$")
MAX_COMMAND_CHARS = 80  # of a process in a notice
MEASURED_AFTER_S = 1.0  # shorter scripts do not pay for loading what measures the devices
MEASURING_STARTS_S = 2.0  # wait for its start if the script ends meanwhile


def read_tail(path: Path) -> str:
    """Return the end of a log as text, "" if there is none."""
    if not path.is_file():
        return ""
    with path.open("rb") as source:
        source.seek(max(path.stat().st_size - STDERR_TAIL_BYTES, 0))
        return source.read().decode("utf-8", errors="replace").rstrip()


def devices_opener(
    context: AttemptContext,
    folder: Path,
    *,
    report: Callable[[float], None] | None = None,
    others_idle_s: Callable[[], float] | None = None,
) -> Callable[[threading.Event], DeviceWatch]:
    """Return a function that loads and returns the `DeviceWatch` of these arguments."""

    def open_devices(ending: threading.Event) -> DeviceWatch:
        from runner.node.devices.watch import DeviceWatch  # noqa: PLC0415  see MEASURED_AFTER_S

        return DeviceWatch(context, folder, ending, report=report, others_idle_s=others_idle_s)

    return open_devices


class Attempt:
    """The stages of an attempt, in the order of the methods, which `main` and `worker` call.

    Each stage raises StageFailedError if it fails, and TerminatedError if the task has to end.

    Attributes:
        spec: the run. That of a trial changes when its parameters are decided.
        temp: the folder of the script's temporary files, which exists from `run` until the caller
            removes it.
        streams: the logs, which may be searched for metrics. None on a worker.
        finished: records that the script succeeded. None on a worker.
        node_group: the run's other nodes, if this node is the primary of several.
        trial: reports to a sweep, if the run is one of its trials.
        devices: measures what the script uses of this node, from its second second on; else None.
    """

    def __init__(  # noqa: PLR0913 - everything an attempt has
        self,
        task: TaskContext,
        context: AttemptContext,
        checkpoints: AttemptCheckpoints,
        outputs: AttemptOutputs,
        *,
        streams: Streams | None = None,
        finished: FinishedScript | None = None,
        node_group: NodeGroup | None = None,
        trial: SweepTrial | None = None,
        beside: Sequence[AbstractContextManager[object]] = (),
        open_devices: Callable[[threading.Event], DeviceWatch] | None = None,
    ) -> None:
        self._task = task
        self._node = task.node
        self._termination = task.termination
        self._dirs = context.dirs
        self._paths = context.paths
        self.spec = context.spec
        self.number = context.number
        self.events = context.events
        self.checkpoints = checkpoints
        self.outputs = outputs
        self.streams = streams
        self.finished = finished
        self.node_group = node_group
        self.trial = trial
        self.devices: DeviceWatch | None = None
        self._open_devices = open_devices
        self._beside = beside
        self.temp = TempFolder(self._node.work_dir)
        self._compiling: subprocess.Popen[bytes] | None = None  # ends with the agent
        self.reserve = DiskReserve(self._node.work_dir, shared=NODES_VARIABLE in os.environ)
        outputs.limit_to_room(self.reserve.room_bytes)
        self._hung = ""  # the error message if the script stopped making progress

    @property
    def stopped_early(self) -> str | None:
        """Why the sweep stopped this trial, or None."""
        return self.trial.stopped if self.trial is not None else None

    @property
    def launch_folder(self) -> Path:
        """The folder of the files that the launcher needs."""
        return self._node.work_dir / HOOKS_FOLDER / LAUNCH_FOLDER

    def count_processes(self, inherited: Mapping[str, str]) -> int:
        """Return how many processes the launcher starts on this node."""
        if LAUNCHERS[self.spec.launcher].start == "command":
            return 1
        return count_processes(self.spec, {**inherited, **self.spec.env})

    def set_up(self, secrets: Mapping[str, str] | None = None) -> dict[str, str]:
        """Run the stages `code` to `inputs`. Return the variables that they add for the script.

        `secrets` are the secrets of the run by variable, which the installation may need.
        """
        access, retry_budget = self._task.inputs, self._task.retry_budget
        shared, check = self._node.shared_dir, self._termination.check
        remove_tree(self.launch_folder)  # of an earlier attempt
        with self.events.stage("code", "unpacking the code"):
            archive = self._node.work_dir / CODE_ARCHIVE
            unpack_code(archive, self._dirs.code, self.spec.code.sha256)
        check()
        environment = self._environment(secrets or {})
        variables = {"VIRTUAL_ENV": str(environment)}
        check()
        data = self.spec.data
        if data is not None and data.prefix:
            with self.events.stage("data", "downloading the data set") as report:
                root = shared / "runner" / "data"
                cache = DataCache(access.data.transport, root, retry_budget, report, check)
                folder = cache.ensure(data.prefix, data.files)
            variables["RUNNER_DATA_DIR"] = str(folder)
        if self.spec.inputs:
            check()
            with self.events.stage("inputs", "downloading the inputs") as report:
                work_dir = self._node.work_dir
                fetch = InputFetch(access, shared, work_dir, retry_budget, report, check)
                variables |= fetch_inputs(fetch, self.spec.inputs)
        return variables

    def _environment(self, secrets: Mapping[str, str]) -> Path:
        """Return the environment of this task: its layer of a shared one, or the image's."""
        spec, code, shared = self.spec, self._dirs.code, self._node.shared_dir
        check, pins, layer = self._termination.check, spec.constraints, LAYER_FOLDER
        variables = None
        if spec.env or secrets:
            from runner.node.environment.install_variables import (  # noqa: PLC0415  few runs
                InstallVariables,
            )

            variables = InstallVariables(spec.env, secrets)
        file, sha256, packages = spec.requirements_file, spec.code.sha256, spec.packages
        with self.events.stage("environment", "preparing the Python environment") as report:
            if spec.is_conda and spec.requirements_file:
                from runner.node.environment.conda_env import CondaEnvironment  # noqa: PLC0415

                conda = CondaEnvironment(shared, report, check)
                with self._kept_output(conda):
                    found = conda.ensure(code, spec.requirements_file, sha256, packages)
                    return conda.layer_of(found, self._node.work_dir / layer, code)
            if spec.image is not None:
                from runner.node.environment.image_env import ImageEnvironment  # noqa: PLC0415

                inside = ImageEnvironment(
                    shared, spec.image, report, check, variables, spec.commits
                )
                with self._kept_output(inside):
                    found = inside.ensure(code, file, sha256, pins, packages)
                    return inside.layer_of(found, self._node.work_dir / layer, code)
            builder = EnvironmentBuilder(shared, report, check, variables, spec.commits)
            with self._kept_output(builder):
                found = builder.ensure(
                    code, file, spec.python, sha256, constraints=pins, packages=packages
                )
                return builder.layer_of(found, self._node.work_dir / layer, code)

    @contextmanager
    def _kept_output(self, builder: Builder) -> Generator[None]:
        """Append what a build printed to the run's log `build`, also if it failed.

        An empty environment that was created has nothing to say.
        """
        is_worth = True
        try:
            yield
            is_worth = bool(self.spec.requirements_file or self.spec.packages)
        finally:
            if builder.output and is_worth:
                text = "\n".join([f"attempt {self.number}", *builder.output, ""])
                hidden = self._task.redactor.data(text.encode())
                log = AppendBlob(self._task.runs, self._paths.log("build"))
                try:
                    log.open()
                    log.append(hidden[-MAX_APPEND_BYTES:])
                except (StorageRequestError, BlobShrankError) as err:
                    logger.warning("the output of the build is not kept: %s", err)

    def resume(self) -> dict[str, str]:
        """Run the stage `restore`. Return the variables that it adds for the script."""
        self._termination.check()
        found = self.checkpoints.restore()
        if note := self.checkpoints.resume_note:
            self.events.add("notice", "progress", note)
            with self._dirs.stderr.open("a", encoding="utf-8") as log:
                log.write(f"runner: {note}\n")
        if self.number > 1:
            self._mark_resume()
        return found

    def _mark_resume(self) -> None:
        """Record after which work this attempt continues: later values are of lost work."""
        restored = self.checkpoints.restored
        own = restored if restored and restored.run_id == self.spec.run_id else None
        if self.streams is not None:
            self.streams.continue_from(own.checkpoint if own else None)
        if self.trial is not None:
            self.trial.continue_from(own.checkpoint.step if own else None)

    def find_load_failure(self, failure: StageFailedError) -> ResumeFailure | None:
        """Return the failure of the script to load its checkpoint, or None for another failure."""
        took_s = self.events.stages_s.get(COMMAND_STAGE, 0.0)
        return self.checkpoints.find_load_failure(failure, took_s)

    def decide_params(self) -> None:
        """Run the stage `sample` if the run is a trial whose parameters are not decided yet."""
        self._termination.check()
        if self.trial is not None:
            shared, check = self._node.shared_dir, self._termination.check
            self.spec = self.trial.decide(shared, self.events, check)

    def assemble(self, inherited: Mapping[str, str]) -> ClusterSpec | None:
        """Run the stage `nodes` on the primary of several. Return the nodes, or None for one."""
        if self.node_group is None:
            return None
        processes = self.count_processes(inherited)
        return self.node_group.assemble(self.checkpoints.restored, processes)

    def run(
        self,
        inherited: Mapping[str, str],
        prepared: Mapping[str, str],
        cluster: ClusterSpec | None = None,
        *,
        rank: int = 0,
    ) -> None:
        """Run the stages `prepare` and `command`; the time limit applies to both together.

        Args:
            inherited: the environment of the agent.
            prepared: further variables, from `set_up`.
            cluster: the nodes of the run, if it has several.
            rank: the rank of this node. Only rank 0, the primary, enforces the time limit of the
                command.
        """
        if self.spec.image is not None:
            inherited = {**inherited, **_account_variables(inherited, self._node.work_dir)}
        place = NodePlace(rank, self.count_processes(inherited), self.launch_folder, cluster)
        self.temp.create({*inherited, *self.spec.env})
        written = self._watch_files(inherited)
        environment = self._script_environment(inherited, prepared, place, written)
        write_shell_file(self._dirs.logs, environment, self.spec.secret_names)
        left_s = self._start_time_limit()
        shared = self._node.shared_dir
        protect = protect_node(shared, writable=[compiled_folder(shared, self.spec.code.sha256)])
        if protect is not None:
            hooks = hook_folders(self._node.work_dir)
            self._compiling = compile_later(Path(prepared["VIRTUAL_ENV"]), hooks)
        if self.spec.prepare:
            self._prepare_node(environment, left_s, protect)
        with self.events.stage("command", shlex.join(self.spec.command)):
            ended = self._run_command(environment, place, written, left_s, protect)
            self._termination.check()
            if self._is_stopped_early(ended):
                return
            self._check_stop(ended)
            try:
                self._check_end(ended)
            except StageFailedError as err:
                if may_be_load_failure(err):
                    err.add_evidence(
                        read_error(self._dirs.stderr, self._dirs.code),
                        has_read_checkpoint=self.checkpoints.was_read,
                    )
                raise
        if self.finished is not None and self.streams is not None:
            where = Path(prepared["VIRTUAL_ENV"])
            self.finished.save(self.number, where, self.outputs.collect(), self.streams)

    def _watch_files(self, inherited: Mapping[str, str]) -> WrittenFiles:
        home, dirs, node = Path(inherited.get("HOME") or "/"), self._dirs, self._node
        places: dict[str, Path] = {}
        # HOME belongs to this task alone if it is the working directory, or is in a container.
        if home == node.work_dir or (self.spec.image is not None and home != Path("/")):
            places[HOME] = home
        if self.temp.path is not None:
            places[TEMP] = self.temp.path
        agent_paths = [node.work_dir / name for name in AGENT_FILES]
        agent_paths += [node.work_dir.parent / name for name in ("stdout.txt", "stderr.txt")]
        agent_paths += [dirs.checkpoints, dirs.logs, node.shared_dir]
        if given := inherited.get("AZ_BATCH_NODE_MOUNTS_DIR"):
            agent_paths += [mounts := Path(given), *mounts.glob("*")]  # a mount may be a link
        # The cache may be a link.
        agent_paths.append(compiled_folder(node.shared_dir, self.spec.code.sha256))
        root = inherited.get("AZ_BATCH_NODE_ROOT_DIR")
        return WrittenFiles(
            dirs.code,
            dirs.output,
            places,
            agent_paths,
            self.spec,
            shared=[Path(root)] if root else [],
            recorded=written_paths_file(node.work_dir),
            inherited=inherited,
        )

    def _script_environment(
        self,
        inherited: Mapping[str, str],
        prepared: Mapping[str, str],
        place: NodePlace,
        written: WrittenFiles,
    ) -> dict[str, str]:
        spec, node = self.spec, self._node
        if place.cluster is not None:
            cluster = node_variables(place.cluster, place.rank)
        else:
            read = LAUNCHERS[spec.launcher].reads
            cluster = single_node_variables(read) if read else {}
        environment_dir = Path(prepared["VIRTUAL_ENV"])
        if not (environment_dir / "pyvenv.cfg").exists():  # an image's own Python
            prepared = {name: v for name, v in prepared.items() if name != "VIRTUAL_ENV"}
        named = written.named_outputs()
        # Inputs by the variables of other systems, such as SM_CHANNEL_TRAIN for the input `train`.
        for variable, name in written.code_text.named_inputs().items():
            if INPUT_VARIABLE_PREFIX + name in prepared:
                named[variable] = prepared[INPUT_VARIABLE_PREFIX + name]
        own = self._own_variables()
        known = {**named, **inherited, **prepared, **cluster, **own}
        env = expand_env(spec.env, known)
        path = env.get("PATH") or inherited.get("PATH", os.defpath)
        modules = python_path(
            env.get("PYTHONPATH") or inherited.get("PYTHONPATH"),
            node.work_dir,
            shared_dir=node.shared_dir,
            automatic=self._is_automatic(written.code_text),
            recorded=spec.keep is not None,
            stacks=spec.hang_timeout_s is not None,
        )
        return {
            **compilation_variables(node.shared_dir, spec.code.sha256),
            **({"TMPDIR": str(self.temp.path)} if self.temp.path else {}),
            **named,
            **inherited,
            **env,
            **exclude_loopback({**inherited, **env}),
            **SINGLE_NODE,
            **prepared,
            PROCESSES_VARIABLE: str(place.processes),
            **cluster,
            "PYTHONPATH": modules,
            "PATH": f"{environment_dir / 'bin'}{os.pathsep}{path}",
            **own,
            "RUNNER_SECRET_NAMES": " ".join(sorted(spec.secret_names)),
        }

    def _own_variables(self) -> dict[str, str]:
        """Return the variables that name the run and its folders."""
        dirs, rule = self._dirs, self.spec.checkpoints
        return {
            "RUNNER_RUN_ID": self.spec.run_id,
            "RUNNER_ATTEMPT": str(self.number),
            "RUNNER_OUTPUT_DIR": str(dirs.output),
            **self._named_outputs(),
            "RUNNER_CHECKPOINT_DIR": str(dirs.checkpoints),
            **({"RUNNER_CHECKPOINT_INTERVAL": f"{rule.interval_s:g}"} if rule else {}),
            "RUNNER_METRICS_FILE": str(dirs.metrics),
            "RUNNER_PARAMS": str(dirs.params),
        }

    def _is_automatic(self, code_text: CodeText) -> bool:
        """Return True if hooks may save checkpoints of the script.

        Write a notice if the script saves none and hooks cannot either.
        """
        rule = self.spec.checkpoints
        if rule is None:
            return False
        if self.spec.is_workspace:
            pass  # a person works on the node, so the code need not run
        elif code_text.trains_without_checkpoints and not self._node.dedicated:
            self.events.add("notice", "progress", NO_CHECKPOINTS_NOTICE)
        elif rule.automatic and self.spec.nodes > 1 and code_text.is_saved_by_hooks:
            self.events.add("notice", "progress", SEVERAL_NODES_NOTICE)
        # Hooks on several nodes would have to agree on the times of their checkpoints.
        return rule.automatic and self.spec.nodes == 1 and not code_text.saves_checkpoints

    def _named_outputs(self) -> dict[str, str]:
        folders = {v: self._dirs.output / path for v, path in self.spec.named_outputs.items()}
        for folder in folders.values():
            folder.mkdir(parents=True, exist_ok=True)
        return {variable: str(folder) for variable, folder in folders.items()}

    def _start_time_limit(self) -> Callable[[], float | None]:
        """Return a function for the seconds left: `MIN_LIMIT_S` or more, None without a limit."""
        limit_s, began = self.spec.timeout_s, time.monotonic()
        return lambda: limit_s and max(limit_s - (time.monotonic() - began), command.MIN_LIMIT_S)

    def _prepare_node(
        self,
        environment: Mapping[str, str],
        left_s: Callable[[], float | None],
        protect: Callable[[], None] | None,
    ) -> None:
        """Run the stage `prepare`, unless a task of the job prepared this node for all of them."""
        from runner.node.agent.preparation import NodePreparation  # noqa: PLC0415  few runs need it

        own = [self._node.work_dir, *([self.temp.path] if self.temp.path else ())]
        preparation = NodePreparation(self._node, self.spec, own, self.events)
        preparation.run(
            self._dirs,
            environment,
            left_s,
            must_stop=self._must_stop,
            check=self._termination.check,
            check_stop=self._check_stop,
            protect=protect,
        )

    def _run_command(
        self,
        environment: Mapping[str, str],
        place: NodePlace,
        written: WrittenFiles,
        left_s: Callable[[], float | None],
        protect: Callable[[], None] | None,
    ) -> command.ScriptResult:
        """Run the script to its end, and commit its last checkpoint."""
        self._check_folders()
        words = self._expanded_command(environment)
        path, code = environment["PATH"], self._dirs.code
        launch = Launch(tuple(words))
        if LAUNCHERS[self.spec.launcher].start != "command":
            launch = prepare_launch(self.spec, self.number, words, place, path, code)
        # Without a pattern and the metrics file, the metrics are in the output and other files.
        has_metrics = self.spec.metric_patterns or written.mentions("RUNNER_METRICS_FILE")
        if self.streams is not None and not has_metrics:
            folders = partial(written.metric_folders, self._dirs.checkpoints)
            from runner.node.script.script_python import ScriptPython  # noqa: PLC0415  as below

            python = ScriptPython.of_command(
                words, {**environment, SCRIPT_OF_VARIABLE: str(self._node.work_dir)}, protect
            )
            self.streams.search_metrics(wanted_metrics(self.spec), folders, python and python.ask)
        self.outputs.begin(written, words)
        watch = None if place.rank else self.hang_watch()  # the primary watches all ranks
        group = self.node_group
        collect_shards = group.collect_shards if group is not None else None
        self.reserve.keep()
        try:
            with ExitStack() as stack:
                for each in (*self._beside, self._measuring(), *self._connect(place)):
                    stack.enter_context(each)
                stack.callback(self.reserve.release)
                ended = command.run_command(
                    launch.words,
                    cwd=self._dirs.code,
                    environment={
                        **environment,
                        **launch.environment,
                        SCRIPT_OF_VARIABLE: str(self._node.work_dir),
                    },
                    stdout=self._dirs.stdout,
                    stderr=self._dirs.stderr,
                    timeout_s=None if place.rank else left_s(),
                    terminated=lambda: (
                        self._must_stop()
                        or self._is_hung(watch)
                        or bool(self._idle)
                        or self.reserve.stays_full()
                    ),
                    grace_s=lambda: self.checkpoints.grace_s,
                    on_start=lambda pid: self.checkpoints.start(pid, collect_shards),
                    writers=self.checkpoints.writers,
                    protect=protect,
                )
        except BaseException:
            self.checkpoints.finish(None)
            raise
        self.checkpoints.finish(ended)
        return ended

    def _check_folders(self) -> None:
        """Raise StageFailedError if `prepare` replaced a folder that the agent writes to."""
        hooks = self._node.work_dir / HOOKS_FOLDER
        for folder in (self._dirs.logs, hooks, hooks / "notebook", self.launch_folder):
            if folder.is_symlink():
                raise _command_error("CommandFailed", f"`prepare` replaced {folder} by a link")

    def _expanded_command(self, environment: Mapping[str, str]) -> list[str]:
        """Return the command with variables replaced by their values.

        Write the parameters, with variables replaced likewise, to $RUNNER_PARAMS.
        """
        try:
            params = {
                name: expand_variables([value], environment)[0] if isinstance(value, str) else value
                for name, value in self.spec.params.items()
            }
            self._dirs.params.unlink(missing_ok=True)  # `prepare` may have made it a link
            self._dirs.params.write_text(json.dumps(params), encoding="utf-8")
            words = expand_variables(self.spec.command, environment)
            return own_script(words, self._node.work_dir)
        except KeyError as err:
            what = f"the command refers to ${err.args[0]}, which is not set on the node"
            raise _command_error("VariableMissing", what) from None

    def hang_watch(self) -> HangWatch | None:
        """Return a watch of this node's script, or None if the recipe sets no `hang_timeout`.

        On the primary, it also watches the other nodes.
        """
        limit_s, group = self.spec.hang_timeout_s, self.node_group
        find_stalled = group.find_stalled if group is not None else None
        return HangWatch(self._dirs, limit_s, find_stalled=find_stalled) if limit_s else None

    def _connect(self, place: NodePlace) -> list[AbstractContextManager[object]]:
        """Return what lets mpirun use the other nodes, if there are any."""
        if self.node_group is None or LAUNCHERS[self.spec.launcher].start != "mpirun":
            return []
        from runner.node.distributed.remote_launch import LaunchRequests  # noqa: PLC0415

        requests = LaunchRequests(place.folder, self.node_group.launch)
        self.node_group.report_launched(requests.end)
        return [requests]

    def _must_stop(self) -> bool:
        if self._termination.requested or self.checkpoints.must_stop or self.stopped_early:
            return True
        return self.node_group is not None and self.node_group.failed

    @contextmanager
    def _measuring(self) -> Generator[None]:
        """Measure the devices in a block, unless it is short."""
        ending, open_devices = threading.Event(), self._open_devices
        if open_devices is None:
            yield
            return

        def begin() -> None:
            if ending.wait(MEASURED_AFTER_S):
                return
            try:
                devices = open_devices(ending)
                devices.start()
            except Exception:  # a bug: the script must not notice
                logger.exception("the devices are not measured")
                return
            self.devices = devices

        starting = threading.Thread(target=begin, name="devices, start", daemon=True)
        starting.start()
        try:
            yield
        finally:
            ending.set()
            starting.join(MEASURING_STARTS_S)

    @property
    def _idle(self) -> tuple[str, str] | None:
        """The code and the message of a script whose devices were idle for too long, or None."""
        return self.devices.ended if self.devices is not None else None

    def _is_hung(self, watch: HangWatch | None) -> bool:
        """Return True if no node has progressed within the limit. Dump the stacks before."""
        if watch is not None and not self._hung and (text := watch.describe_hang()):
            self.events.add("notice", "failed", text)
            if self.node_group is not None:
                self.node_group.dump_stacks(text)
            self.dump_stacks(text)
            self._hung = f"{text}; stderr ends with the stacks of all processes"
        return bool(self._hung)

    def dump_stacks(self, text: str) -> None:
        """Write the stacks of the script's processes on this node to its standard error."""
        count = dump_stacks(stacks_file(self._node.work_dir), self._dirs.stderr, text)
        logger.info("wrote the stacks of %d processes", count)

    def _is_stopped_early(self, ended: command.ScriptResult) -> bool:
        """Return True if the sweep ended the script, and not an eviction or a hang."""
        if not (ended.stopped and self.stopped_early):
            return False
        if self.checkpoints.must_stop or self._hung or self._idle:
            return False
        self.events.summarise(f"stopped early: {self.stopped_early}")
        return True

    def _check_stop(self, ended: command.ScriptResult) -> None:
        """Raise the cause if the agent stopped the command, such as a hang or an eviction."""
        if self._hung:
            raise _command_error("Hung", self._hung)
        is_evicted = self._termination.requested or self.checkpoints.must_stop
        if ended.stopped and self._idle and not is_evicted:
            code, text = self._idle
            raise _command_error(code, f"stopped: {text}", command.TIMEOUT_EXIT_CODE)
        if ended.stopped and self.reserve.full and not self._must_stop():
            what = f"stopped, because the local services had no room: {self.reserve.full}"
            raise _command_error("DiskFull", what)
        if self.node_group is not None:
            self.node_group.check_results(ended)
        if ended.stopped:
            raise EvictedError

    def _check_end(self, ended: command.ScriptResult) -> None:
        """Raise StageFailedError if the script failed. Warn if it succeeded in a doubtful way."""
        shown = shlex.join(self.spec.command[: 3 if self.spec.command[1:2] == ("-m",) else 2])
        code = ended.exit_code
        if ended.timed_out:
            used_s = round(self.events.stages_s.get(PREPARE_STAGE, 0.0))
            what = f"{shown} was stopped after its time limit of {self.spec.timeout_s:.15g} s"
            what += f", of which `prepare` took {used_s} s" if used_s else ""
            raise _command_error("Timeout", what, command.TIMEOUT_EXIT_CODE)
        full = self.reserve.full or full_disk_text(self._dirs.output)
        if not code:
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
            raise _command_error("NotebookCellFailed", stopped[-1], code)
        how = f"was ended by signal {code - 128}" if code > 128 else f"exited with code {code}"
        how = f"{shown} {how}{self.checkpoints.resumed_text}"
        how += self._missing_module(tail) or self._read_only_file(tail)
        # A full disk may have swallowed the script's error message. Conversely, the disk may have
        # room again because the script removed unfinished files: then its message tells.
        if full or (full := disk_full_line(tail)):
            raise _command_error("DiskFull", f"{how}: {full}", code)
        raise _command_error("CommandFailed", how, code)

    def _missing_module(self, tail: str) -> str:
        """Return advice if a missing module ended the script, otherwise an empty string."""
        found = _MISSING_MODULE.search(tail)
        if found is None or any(self._dirs.code.glob(f"{found[1]}*")):
            return ""
        where = self.spec.requirements_file or "a requirements.txt beside the script"
        return f": no module {found[1]!r}; add its package to {where}"

    def _read_only_file(self, tail: str) -> str:
        """Return advice if the script wrote to a folder of the node, otherwise an empty string."""
        shared = self._node.shared_dir
        places = [os.path.realpath(place) for place in (shared, shared / "runner" / "cache")]
        for found in _READ_ONLY.finditer(tail):
            path = Path(found[1] or found[2])
            if any(Path(os.path.realpath(path)).is_relative_to(place) for place in places):
                return f": {path.name!r} is in a folder that other runs use: write to a copy of it"
        return ""

    def export(self) -> list[OutputFile]:
        """Run the stage `export`. Return all exported files, also those of other nodes."""
        outputs, group = self.outputs, self.node_group
        with self.events.stage("export", "exporting the outputs") as report:
            if self.stopped_early:
                return outputs.export_partial(lambda: None, last=True)
            found = outputs.export(outputs.prefix, report, self.spec.outputs)
            if group is not None:
                own = [file.path for file in found]
                folders = {rank: rank_folder(rank, own) for rank in group.workers}
                for rank in group.gather(
                    lambda rank: {"prefix": outputs.prefix + folders[rank]}, report
                ):
                    found += outputs.of_rank(rank, folders[rank])
            return outputs.add_earlier(found)


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


def _command_error(code: str, message: str, exit_code: int | None = None) -> StageFailedError:
    return StageFailedError(COMMAND_STAGE, code, message, exit_code)
