"""The coordination command of a run over several nodes: `python3 runner-agent.pyz join`.

It leaves a worker behind on every node but the primary and returns, as Batch wants it to: the
primary's own command begins when all coordination commands are done.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runner.node.attempt import CODE_ARCHIVE
from runner.node.failures import TerminatedError
from runner.node.hosts import TOKEN_VARIABLE, Hosts, load_hosts
from runner.node.keeper import keep
from runner.node.link import Link
from runner.node.notice import Notice, NoticeWatch, watch_notices
from runner.node.patience import Patience
from runner.node.primary import Primary
from runner.node.pulse import load_rhythm
from runner.node.redaction import Redactor, log_to_stdout
from runner.node.rendezvous import find_primary
from runner.node.settings import (
    SettingsError,
    load_access,
    load_node_settings,
    load_task_secrets,
    process_environment,
    script_environment,
)
from runner.node.task import FAILED_EXIT_CODE
from runner.node.termination import Termination
from runner.node.transport import StorageError
from runner.node.worker import Means, Worker

logger = logging.getLogger(__name__)

LOG_FILE = "runner-worker.txt"  # beside the script's folders, in the task's working directory
FIND_S = 900.0  # other nodes may still be fetching the run's files
# One that was frozen or cut off may come to life, as long as it waits itself (reunion.py).
FIND_AGAIN_S = 300.0
KNOCK_S = 1.0
LAST_WORDS_S = 10.0


def join() -> int:
    """Leave a worker behind, unless this is the primary; the command's exit code."""
    environment = process_environment()
    hosts = load_hosts(environment)
    if hosts is None or hosts.is_primary:
        return 0
    try:
        work_dir = load_node_settings(environment).work_dir
        rhythm = load_rhythm(environment)
        _take_code(environment, work_dir)
    except (SettingsError, OSError) as err:
        sys.stderr.write(f"this node cannot take part: {err}\n")
        return FAILED_EXIT_CODE
    if os.fork():
        return 0
    os.setsid()
    _detach_output(work_dir / LOG_FILE)
    redactor = Redactor()
    log_to_stdout(redactor)
    return keep(lambda: _work(environment, hosts, redactor), stopped_s=rhythm.silence_s)


def _take_code(environment: Mapping[str, str], work_dir: Path) -> None:
    """Files for every node lie in the task's shared folder, not where the work is done."""
    shared = environment.get("AZ_BATCH_TASK_SHARED_DIR")
    if not shared:
        raise SettingsError("AZ_BATCH_TASK_SHARED_DIR is not set")
    shutil.copyfile(Path(shared) / CODE_ARCHIVE, work_dir / CODE_ARCHIVE)


def _detach_output(log: Path) -> None:
    """Batch may wait for whoever still holds the command's output."""
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (out, 1), (out, 2)):
        os.dup2(source, target)


def _work(environment: Mapping[str, str], hosts: Hosts, redactor: Redactor) -> int:
    """Attempt after attempt, until the primary wants no other one."""
    try:
        within_s = FIND_S
        while within_s:
            within_s = _take_part(environment, hosts, redactor, within_s)
    except TerminatedError:
        logger.info("terminated by Batch")
    except (SettingsError, StorageError) as err:
        logger.error("%s", err)
        return FAILED_EXIT_CODE
    except Exception:
        logger.exception("the worker failed")
        return FAILED_EXIT_CODE
    return 0


def _take_part(
    environment: Mapping[str, str], hosts: Hosts, redactor: Redactor, within_s: float
) -> float:
    """One attempt, if the primary is found; how long to look for it again.

    Raises TerminatedError.
    """
    patience = Patience()
    termination = Termination(on_first=lambda: patience.hurry(LAST_WORDS_S))
    termination.install()
    token = environment.get(TOKEN_VARIABLE, "")
    means = Means(
        load_node_settings(environment), hosts, load_access(environment, patience, redactor),
        load_task_secrets(environment, redactor), patience, termination, redactor,
    )  # fmt: skip
    redactor.add(token)
    link = find_primary(hosts.primary, token, within_s=within_s, check=termination.check)
    if link is None:
        logger.error("%s did not answer within %g s", hosts.primary, within_s)
        return 0.0
    try:
        return _serve(means, link, environment, within_s)
    finally:
        link.close()


def _serve(means: Means, link: Link, environment: Mapping[str, str], within_s: float) -> float:
    primary = Primary(link, means.termination, load_rhythm(environment))
    primary.start()
    primary.tell("hello", node=means.node.node, address=means.hosts.own)
    if (welcome := _welcome(primary)) is None:
        time.sleep(KNOCK_S)
        return min(_next(primary, means.termination), max(within_s - KNOCK_S, 0.0))
    _pass_on_notices(watch_notices(environment, means.node), primary)
    worker = Worker(means, primary, int(welcome["rank"]), int(welcome["attempt"]))
    worker.run(script_environment(environment))
    primary.wait()
    return _next(primary, means.termination)


def _welcome(primary: Primary) -> dict[str, Any] | None:
    """None from a primary that sends this node away, or is gone at once."""
    try:
        return primary.next_order("welcome")
    except TerminatedError:
        if not primary.is_over:
            raise
        return None


def _next(primary: Primary, termination: Termination) -> float:
    """How long to look for the primary's next attempt."""
    if termination.is_from_batch:
        raise TerminatedError
    if not primary.again:
        return FIND_AGAIN_S if primary.is_gone else 0.0
    logger.info("the next attempt runs here too")
    return FIND_S


def _pass_on_notices(notices: NoticeWatch | None, primary: Primary) -> None:
    """The primary has the checkpoints to commit before any of the nodes goes."""
    if notices is None:
        return

    def pass_on(notice: Notice) -> None:
        primary.tell("notice", left_s=notice.left_s)

    notices.on_notice = pass_on
    if notices.notice is not None:
        pass_on(notices.notice)
