"""What is run on a node for a person who looks in: one text for ssh and for this machine."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from runner.node.shell_file import SHELL_FILE

# In the task's folder, as the task's own user: `$1` the folder, then the command, or none.
_ENTER = "; ".join(
    (
        'cd "$1" || exit 69',
        "shift",
        f"if [ -r logs/{SHELL_FILE} ]",
        f"then . ./logs/{SHELL_FILE}",
        "cd code",
        "fi",
        'if [ $# -gt 0 ]; then exec "$@"',
        "fi",
        r"""PS1='[\u \W] \$ '""",
        "export PS1",
        "if [ -t 0 ] && command -v bash >/dev/null 2>&1; then exec bash --norc -i",
        "fi",
        "exec sh",
    )
)
# `$1` what is run then, `$2` the folder. The folder belongs to the task's user, who may be another
# than the one that signs in: an administrator becomes that user, so that what is written is its.
_AS_OWNER = "; ".join(
    (
        "enter=$1",
        "wd=$2",
        "shift 2",
        'if [ -w "$wd" ]; then exec sh -c "$enter" runner "$wd" "$@"',
        "fi",
        'owner=$(sudo -n stat -c %u "$wd") || exit 69',  # sudo, or stat, says why
        'exec sudo -n -u "#$owner" sh -c "$enter" runner "$wd" "$@"',
    )
)
# `$3` the container's id. Whoever may not talk to the engine tries as an administrator; the
# emulator's engine may be podman.
_IN_CONTAINER = "; ".join(
    (
        "enter=$1",
        "wd=$2",
        "id=$3",
        "shift 3",
        "tty=-i",
        "if [ -t 0 ]; then tty=-it",
        "fi",
        'for engine in docker podman "sudo -n docker"',
        'do if $engine inspect "$id" >/dev/null 2>&1',
        'then exec $engine exec $tty "$id" sh -c "$enter" runner "$wd" "$@"',
        "fi",
        "done",
        'echo "no container engine of this node shows container $id" >&2',
        "exit 69",
    )
)


def shell_command(work_dir: str, command: Sequence[str], container: str | None) -> list[str]:
    """Arguments that run `command`, or a shell, in a task's folder with its environment."""
    if container:
        return ["sh", "-c", _IN_CONTAINER, "runner", _ENTER, work_dir, container, *command]
    return ["sh", "-c", _AS_OWNER, "runner", _ENTER, work_dir, *command]


def ssh_command(
    *, user: str, host: str, port: int, key: str, known_hosts: str, terminal: bool
) -> list[str]:
    """The `ssh` that signs in; what is to be run there follows as one quoted argument."""
    options = {
        "IdentitiesOnly": "yes",
        "BatchMode": "yes",
        # A node is new and its key unknown; a second connection finds the first one's key.
        "StrictHostKeyChecking": "accept-new",
        "UserKnownHostsFile": known_hosts,
        "ConnectTimeout": "20",
        "ServerAliveInterval": "15",
        "LogLevel": "ERROR",
    }
    words = ["ssh", "-i", key, "-p", str(port), "-tt" if terminal else "-T"]
    for name, value in options.items():
        words += ["-o", f"{name}={value}"]
    return [*words, f"{user}@{host}", "--"]


def quoted(command: Sequence[str]) -> str:
    """A command as one argument for a shell, here or on a node."""
    return shlex.join(command)
