"""One attempt: the stages of a run in order, on this node."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from runner.node import command
from runner.node.attempt_checkpoints import AttemptCheckpoints
from runner.node.blobs import Container
from runner.node.checkpoint_restore import PART
from runner.node.data import DataCache
from runner.node.distributed import ALONE
from runner.node.environment import EnvironmentBuilder
from runner.node.events import EventLog
from runner.node.export import OutputFile, check_promised, export_outputs, restore_outputs
from runner.node.failures import EvictedError, StageFailedError, full_disk_text
from runner.node.finished import Finished
from runner.node.gang import Gang
from runner.node.image_environment import ImageEnvironment
from runner.node.inputs import Fetch, InputAccess, fetch_inputs
from runner.node.node_blobs import OUTPUTS, NodeBlobs
from runner.node.orphans import SCRIPT_OF, kill_left_behind
from runner.node.patience import Patience
from runner.node.rank_outputs import folder_of, read_list
from runner.node.resume import Restored
from runner.node.run_spec import RunSpec
from runner.node.script_hooks import python_path
from runner.node.settings import NodeSettings
from runner.node.shell_file import write_shell_file
from runner.node.termination import Termination
from runner.node.unpack import unpack_code

CODE_ARCHIVE = "code.tar.gz"


@dataclass(frozen=True)
class AttemptDirs:
    """Folders and files of an attempt, below the task's working directory."""

    code: Path
    output: Path
    checkpoints: Path
    logs: Path

    @property
    def stdout(self) -> Path:
        """What the script wrote to standard output."""
        return self.logs / "stdout.txt"

    @property
    def stderr(self) -> Path:
        """What the script wrote to standard error."""
        return self.logs / "stderr.txt"

    @property
    def metrics(self) -> Path:
        """`$RUNNER_METRICS_FILE`."""
        return self.logs / "metrics.jsonl"

    @property
    def params(self) -> Path:
        """`$RUNNER_PARAMS`."""
        return self.logs / "params.json"


def make_dirs(work_dir: Path, *, keep_output: bool = False) -> AttemptDirs:
    """Fresh folders: a task that is retried on the same node finds the last attempt's files.

    And what it left running, where its agent could not end that any more.
    """
    kill_left_behind(work_dir)
    for part in work_dir.glob(f"checkpoints{PART}*"):
        shutil.rmtree(part, ignore_errors=True)  # of a restore that was killed
    names = ("code", "output", "checkpoints", "logs")
    for name in names:
        if name == "output" and keep_output:
            continue
        _clear(work_dir / name)
        (work_dir / name).mkdir(parents=True)
    return AttemptDirs(*(work_dir / name for name in names))


def _clear(path: Path) -> None:
    """A script may have made a link or a file of its folder, or have taken its rights away."""
    if path.is_symlink() or path.is_file():
        path.unlink()
        return
    shutil.rmtree(path, ignore_errors=True)
    if path.is_dir():
        for folder, _, _ in os.walk(path):
            with suppress(OSError):
                Path(folder).chmod(0o700)
        shutil.rmtree(path, ignore_errors=True)


class Attempt:
    """Runs the stages; each raises StageFailedError, or TerminatedError on Batch's request."""

    def __init__(
        self,
        node: NodeSettings,
        spec: RunSpec,
        number: int,
        dirs: AttemptDirs,
        *,
        events: EventLog,
        patience: Patience,
        termination: Termination,
        checkpoints: AttemptCheckpoints,
    ) -> None:
        self._node = node
        self._spec = spec
        self.number = number
        self._dirs = dirs
        self.events = events
        self._patience = patience
        self._termination = termination
        self._checkpoints = checkpoints
        self.finished: Finished | None = None

    def prepare(self, access: InputAccess) -> dict[str, str]:
        """Stages code to inputs; returns the variables they add for the script."""
        with self.events.stage("code", "unpacking the code"):
            archive = self._node.work_dir / CODE_ARCHIVE
            unpack_code(archive, self._dirs.code, self._spec.code_sha256)
        self._termination.check()
        variables = {"VIRTUAL_ENV": str(self._environment())}
        self._termination.check()
        if self._spec.data_prefix is not None:
            with self.events.stage("data", "fetching the data set") as report:
                root = self._node.shared_dir / "runner" / "data"
                cache = DataCache(
                    access.data.transport, root, self._patience, report, self._termination.check
                )
                folder = cache.ensure(self._spec.data_prefix, self._spec.data_files)
            variables["RUNNER_DATA_DIR"] = str(folder)
        if self._spec.inputs:
            self._termination.check()
            with self.events.stage("inputs", "fetching the inputs") as report:
                fetch = Fetch(
                    access,
                    self._node.shared_dir,
                    self._node.work_dir,
                    self._patience,
                    report,
                    self._termination.check,
                )
                variables |= fetch_inputs(fetch, self._spec.inputs)
        return variables

    def resume(self) -> dict[str, str]:
        """Stage restore; returns the variables it adds for the script."""
        self._termination.check()
        return self._checkpoints.restore()

    def _environment(self) -> Path:
        spec, code, shared = self._spec, self._dirs.code, self._node.shared_dir
        check = self._termination.check
        with self.events.stage("environment", "preparing the Python environment") as report:
            if spec.image is not None:
                inside = ImageEnvironment(shared, spec.image, report, check)
                file, pins = spec.requirements_file, spec.constraints
                return inside.ensure(code, file, spec.code_sha256, pins)
            builder = EnvironmentBuilder(shared, report, check)
            return builder.ensure(
                code,
                spec.requirements_file,
                spec.python,
                spec.code_sha256,
                constraints=spec.constraints,
            )

    @property
    def restored(self) -> Restored | None:
        """The checkpoint it goes on from."""
        return self._checkpoints.restored

    def run(
        self,
        inherited: Mapping[str, str],
        prepared: Mapping[str, str],
        others: Gang | None = None,
    ) -> None:
        """Stage command: `inherited` is the task's environment, `prepared` comes from `prepare`.

        `others` are the run's other nodes, where this is the primary of several.
        """
        environment = self._script_environment(inherited, prepared)
        write_shell_file(self._dirs.logs, environment, self._spec.secrets)
        with self.events.stage("command", shlex.join(self._spec.command)):
            checkpoints = self._checkpoints
            try:
                ended = command.run_command(
                    self._spec.command,
                    cwd=self._dirs.code,
                    environment={**environment, SCRIPT_OF: str(self._node.work_dir)},
                    stdout=self._dirs.stdout,
                    stderr=self._dirs.stderr,
                    timeout_s=self._spec.timeout_s,
                    terminated=lambda: self._must_stop(others),
                    grace_s=lambda: checkpoints.grace_s,
                    on_start=checkpoints.start,
                )
            except BaseException:
                checkpoints.finish(None)
                raise
            checkpoints.finish(ended)
            self._termination.check()
            if others is not None:
                others.settle(ended)
            if ended.stopped:
                raise EvictedError
            self._check_end(ended)
        if self.finished is not None:
            self.finished.save(self.number, Path(prepared["VIRTUAL_ENV"]))

    def _must_stop(self, others: Gang | None) -> bool:
        if self._termination.requested or self._checkpoints.must_stop:
            return True
        return others is not None and others.failed

    def export(self, runs: Container, prefix: str, others: Gang | None = None) -> list[OutputFile]:
        """Stage export; `others` as for `run`."""
        with self.events.stage("export", "exporting the outputs") as report:
            check_promised(self._dirs.output, self._spec.outputs)
            check = self._termination.check
            outputs = export_outputs(runs, prefix, self._dirs.output, report, check)
            if others is None:
                return outputs
            folders = {rank: folder_of(rank, outputs) for rank in others.members}
            ranks = others.gather(lambda rank: {"prefix": prefix + folders[rank]}, report)
            for rank in ranks:
                name = NodeBlobs(self._spec.run_id, rank).attempt(self.number, OUTPUTS)
                outputs += read_list(runs, name, folders[rank])
            return sorted(outputs, key=lambda output: output.path)

    def restore(self, runs: Container, prefix: str, outputs: list[OutputFile]) -> list[OutputFile]:
        """What was exported, and is still there when the outcome is about to be written."""
        return restore_outputs(runs, prefix, self._dirs.output, outputs)

    def _check_end(self, ended: command.Ended) -> None:
        shown = shlex.join(self._spec.command[:2])
        if ended.timed_out:
            raise StageFailedError(
                command.STEP,
                "Timeout",
                f"{shown} was stopped after its time limit of {self._spec.timeout_s:g} s",
                command.TIMEOUT_EXIT_CODE,
            )
        if ended.exit_code > 128:
            how = f"{shown} was ended by signal {ended.exit_code - 128}"
        else:
            how = f"{shown} exited with code {ended.exit_code}"
        if not ended.exit_code:
            return
        how += self._checkpoints.where_from
        # On a full disk the script's own complaint may have found no room either.
        if full := full_disk_text(self._dirs.output):
            raise StageFailedError(command.STEP, "DiskFull", f"{how}: {full}", ended.exit_code)
        raise StageFailedError(command.STEP, "CommandFailed", how, ended.exit_code)

    def _named_outputs(self) -> dict[str, str]:
        folders = {v: self._dirs.output / path for v, path in self._spec.named_outputs.items()}
        for folder in folders.values():
            folder.mkdir(parents=True, exist_ok=True)
        return {variable: str(folder) for variable, folder in folders.items()}

    def _script_environment(
        self, inherited: Mapping[str, str], prepared: Mapping[str, str]
    ) -> dict[str, str]:
        self._dirs.params.write_text(json.dumps(self._spec.params), encoding="utf-8")
        path = self._spec.env.get("PATH") or inherited.get("PATH", os.defpath)
        environment_dir = Path(prepared["VIRTUAL_ENV"])
        if not (environment_dir / "pyvenv.cfg").exists():  # an image's own Python
            prepared = {name: v for name, v in prepared.items() if name != "VIRTUAL_ENV"}
        bin_dir = environment_dir / "bin"
        given = self._spec.env.get("PYTHONPATH") or inherited.get("PYTHONPATH")
        rule = self._spec.checkpoints
        modules = python_path(given, self._node.work_dir, environment_dir)
        return {
            **inherited,
            **self._spec.env,
            **ALONE,
            **prepared,
            **({"PYTHONPATH": modules} if modules else {}),
            "PATH": f"{bin_dir}{os.pathsep}{path}",
            "RUNNER_RUN_ID": self._spec.run_id,
            "RUNNER_ATTEMPT": str(self.number),
            "RUNNER_OUTPUT_DIR": str(self._dirs.output),
            **self._named_outputs(),
            "RUNNER_CHECKPOINT_DIR": str(self._dirs.checkpoints),
            **({"RUNNER_CHECKPOINT_INTERVAL": f"{rule.interval_s:g}"} if rule else {}),
            "RUNNER_METRICS_FILE": str(self._dirs.metrics),
            "RUNNER_PARAMS": str(self._dirs.params),
        }
