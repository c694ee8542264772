"""Which variables of this machine a record may make this person send.

Whoever can write to storage can write a record that names any variable, with any code that receives
it. Repetitions therefore ask first, unless this person submitted the same from this machine: the
digests of submissions with secrets are in RUNNER_HOME. Losing them costs one question.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from threading import Lock
from typing import Any

from runner.azure.auth.credentials import Connection
from runner.core.home import HomePaths, make_private, runner_home
from runner.core.recipe.secrets import recorded_secrets
from runner.protocol.errors import RunnerError
from runner.protocol.run_spec import RunSpec

# The identity and the place of a run; everything else of run.json decides what is executed.
_IDENTITY = frozenset(
    (*("run_id", "created", "origin", "group", "after", "schedule", "agent_sha256", "account"),
     *("vm_size", "spot", "moved_from", "job_id", "task_id", "task_trials"),
     *("job_limit_s", "raw"))
)  # fmt: skip
_LARGEST_BYTES = 4 << 20  # 64,000 submissions with secrets; the older half is then forgotten


@dataclass(frozen=True, slots=True)
class Consent:
    """What a person agrees to send.

    Attributes:
        names: Variables that the person named.
        ask: Asks a question on the terminal; None refuses what was not named.
        again: The command, for the fix of a refusal. `{run}` in it becomes the ID of the run.
        why: Why `ask` returned False.
        group: The sweep that the command names: one answer applies to all its runs. Otherwise each
            run is asked for, because a record may claim to be of any group.
    """

    names: Collection[str] = ()
    ask: Callable[[str], bool] | None = None
    again: str = ""
    why: Callable[[], str] = lambda: ""
    group: str = ""
    _lock: Lock = field(default_factory=Lock, repr=False, compare=False)
    _answers: dict[tuple[str, ...], bool] = field(default_factory=dict[tuple[str, ...], bool])

    def require(
        self,
        connection: Connection,
        spec: RunSpec,
        extra: object = None,
        *,
        own_notify: bool = False,
    ) -> None:
        """Raise R-SECRET-SEND if the run asks for variables that the person does not send.

        Args:
            connection: the services.
            spec: the run, as recorded.
            extra: another part of the record that decides what is executed.
            own_notify: the person named the URL of `notify`, so that of the record is not sent.
        """
        refs = recorded_secrets(replace(spec, notify=None) if own_notify else spec)
        asked = sorted({ref.env for ref in refs if ref.env} - {*self.names})
        if not asked or _digest(connection, spec, extra) in _known():
            return
        variables = ", ".join(f"${name}" for name in asked)
        what = f"{spec.run_id or spec.recipe} asks for variables of this machine: {variables}"
        why = "it was not submitted from this machine, or its record has changed since"
        if self.ask is not None:
            key = (self.group or spec.run_id, *asked)
            with self._lock:  # trials are submitted in several threads
                if key not in self._answers:
                    look = f"`runner show {spec.run_id}` shows what it executes"
                    question = f"{what} ({why}; {look}); send their values to its script?"
                    self._answers[key] = self.ask(question)
            if self._answers[key]:
                return
            why = f"{why}; {self.why()}"
        words = " ".join(f"--send-env {name}" for name in asked)
        python = ", ".join(f'"{name}"' for name in asked)
        raise RunnerError(
            "R-SECRET-SEND",
            what,
            why=why,
            fix=f"if you trust its code: {self.again.replace('{run}', spec.run_id)} {words}"
            if self.again
            else f"if you trust its code, pass send_env=[{python}]",
        )


NOTHING = Consent()


def remember(connection: Connection, specs: Iterable[RunSpec], extra: object = None) -> None:
    """Record that this person submitted these runs from this machine."""
    sent = [spec for spec in specs if any(ref.env for ref in spec.all_secrets)]
    if not sent:
        return
    path = HomePaths(runner_home(os.environ)).submissions
    lines = "".join(f"{digest}\n" for digest in {_digest(connection, spec, extra) for spec in sent})
    with suppress(OSError):  # costs a question
        make_private(path.parent)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
        descriptor = os.open(path, flags, 0o600)
        with os.fdopen(descriptor, "ab") as file:
            file.write(lines.encode())
            size = file.tell()
        if size > _LARGEST_BYTES:
            kept = path.read_bytes()[-_LARGEST_BYTES // 2 :]
            part = path.with_name(f"{path.name}.part")
            part.touch(mode=0o600)
            part.write_bytes(kept[kept.index(b"\n") + 1 :])
            part.replace(path)


def remember_documents(
    connection: Connection, documents: Iterable[Mapping[str, Any] | None], extra: object = None
) -> None:
    """Record submissions by their run.json."""
    remember(connection, (RunSpec.from_json(one) for one in documents if one), extra)


def _known() -> frozenset[str]:
    try:
        text = HomePaths(runner_home(os.environ)).submissions.read_text(encoding="ascii")
    except (OSError, ValueError):
        return frozenset()
    return frozenset(text.split("\n"))


def _reread(document: Mapping[str, Any]) -> dict[str, Any]:
    return json.loads(json.dumps(document))


def _number(text: str) -> float:
    """Return 60 for 60.0: a plan may have the one, and its document the other."""
    value = float(text)
    return int(value) if value.is_integer() else value


def _digest(connection: Connection, spec: RunSpec, extra: object) -> str:
    """Return the hash of everything that decides what is executed, where, and what is sent."""
    # What is parsed from the stored document is what is used. The document that `to_json` makes of
    # it would not do: it leaves values out that belong together with a missing one.
    parsed = asdict(RunSpec.from_json(_reread(spec.to_json())))
    values = {name: value for name, value in parsed.items() if name not in _IDENTITY}
    if (rule := spec.fallback) is not None and spec.pool in rule.pools:
        values["pool"] = rule.pools[0]  # the list was submitted, and the run moves in it by itself
    outputs = connection.outputs
    what = (
        json.loads(json.dumps(values), parse_float=_number),
        extra,
        (outputs.batch_endpoint, outputs.batch_account, outputs.blob_endpoint),
        (outputs.storage_account, outputs.container_runs),
    )
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()
