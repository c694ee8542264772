"""Folders of a Linux node and of the tasks on it (files and directories page of the docs)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from batch_emulator.domain.model import job_folder
from batch_emulator.folders import make_real_folder, remove_below


@dataclass(frozen=True, slots=True)
class NodeLayout:
    """Paths below AZ_BATCH_NODE_ROOT_DIR."""

    root: Path

    @property
    def startup(self) -> Path:
        """Task directory of the start task; its working directory is `startup/wd`."""
        return self.root / "startup"

    @property
    def shared(self) -> Path:
        """Folder that every task of the node shares."""
        return self.root / "shared"

    @property
    def applications(self) -> Path:
        """Folder of unpacked application packages."""
        return self.root / "applications"

    @property
    def fsmounts(self) -> Path:
        """Folder of mounted file systems."""
        return self.root / "fsmounts"

    @property
    def volatile(self) -> Path:
        """Scratch folder of the node."""
        return self.root / "volatile"

    @property
    def workitems(self) -> Path:
        """Folder of the jobs."""
        return self.root / "workitems"

    @property
    def python(self) -> Path:
        """The node's own Python environment; beside the root."""
        return self.root.parent / "python"

    @property
    def elevated_python(self) -> Path:
        """The Python environment of elevated tasks, which ordinary ones read; beside the root.

        It exists only where tasks have a user of their own.
        """
        return self.root.parent / "elevated-python"

    @property
    def authorities(self) -> Path:
        """Folder of the certificates that tasks trust for Azure's host names; beside the root."""
        return self.root.parent / "authorities"

    @property
    def packages(self) -> Path:
        """File with the variables of the packages of this boot, as JSON; beside the root."""
        return self.root.parent / "packages.json"

    def job_dir(self, job_id: str) -> Path:
        """Return the folder of a job, with the run number that the service puts below it."""
        return self.root / job_folder(job_id)

    def job_root(self, job_id: str) -> Path:
        """Return the folder to delete with a job; a schedule's folder stays for its other jobs."""
        return self.job_dir(job_id) if ":" in job_id else self.workitems / job_id

    def task_dir(self, job_id: str, task_id: str) -> Path:
        """Return the folder of a task, with stdout.txt, stderr.txt and the working directory."""
        return self.job_dir(job_id) / task_id

    def create(self) -> None:
        """Create the folders of a new node."""
        for folder in (
            self.startup / "wd",
            self.shared,
            self.applications,
            self.fsmounts,
            self.volatile,
            self.workitems,
        ):
            make_real_folder(folder, self.root.parent)
        self.packages.unlink(missing_ok=True)  # from the previous boot

    def delete(self) -> None:
        """Delete everything, as if the node was reimaged or has left."""
        remove_below(self.root, self.root.parent)
