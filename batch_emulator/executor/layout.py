"""Folders of a Linux node and of the tasks on it (files and directories page of the docs)."""

from __future__ import annotations

from pathlib import Path

from batch_emulator.domain.model import job_folder
from batch_emulator.folders import make_real_folder, remove_below


class NodeLayout:
    """Paths below AZ_BATCH_NODE_ROOT_DIR, and of the emulator's own files beside that folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.startup = root / "startup"  # task directory of the start task, which works in `wd`
        self.shared = root / "shared"  # of all tasks of the node
        self.applications = root / "applications"  # unpacked application packages
        self.fsmounts = root / "fsmounts"  # mounted file systems
        self.volatile = root / "volatile"  # scratch folder of the node
        self.workitems = root / "workitems"  # the jobs
        beside = root.parent
        self.python = beside / "python"  # the node's own Python environment
        # The Python environment of elevated tasks, which ordinary ones read. It exists only where
        # tasks have a user of their own.
        self.elevated_python = beside / "elevated-python"
        self.authorities = beside / "authorities"  # that tasks trust for Azure's host names
        self.packages = beside / "packages.json"  # variables of the packages of this boot

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
