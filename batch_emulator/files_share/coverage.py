"""The section of the coverage page on Azure Files; operations come from the routes."""

from __future__ import annotations

from collections.abc import Iterator

from batch_emulator.files_share.table import ROUTES

_HEAD = """\
## Azure Files

Served on a port of its own where `--storage-account` names an account: {done} of {all} operations
of the Files service's OpenAPI description, path-style (`http://127.0.0.1:PORT/ACCOUNT/SHARE/...`),
any `x-ms-version`. Authorized are the shared key, account SAS and service SAS of shares and files.
A share is a folder of the data dir (`shares/SHARE`), a file is a file: mounts and REST show the
same. The others answer `501 NotImplemented` with their name.

| operation | request | |
|---|---|---|"""

_REFUSED = (
    "share snapshots (`sharesnapshot`, `prevsharesnapshot`), soft delete",
    "NFS shares: owner, group, mode, links; premium shares: provisioned and bursting figures",
    "content validation by structured messages and CRC64",
    "security descriptors in binary form; tokens and user delegation keys",
)
_WITHOUT_EFFECT = (
    "metrics, CORS and protocol settings of the service; access tiers",
    "security descriptors: kept and given back by key, checked by nobody",
    "attributes but ReadOnly, which holds against REST and not against mounts",
)
_NOTES = (
    (
        "Metadata and attributes lie in `files.sqlite` and belong to the inode: a file that is "
        "replaced through a mount has none, one that is renamed there loses them."
    ),
    "Symbolic links, pipes and sockets that a task makes are not seen and never followed.",
    "Names of metadata come back in lower case.",
    "Ranges are listed as the disk holds them, in its blocks.",
    (
        "The quota counts sizes of files, holes included, and binds REST only; the figure may be "
        "seconds old."
    ),
    "A copy is done when it is answered; its file is a new one with another id.",
    "A share that is deleted is gone at once and its name free.",
    "A folder that is put beside the shares by hand is a share after the next start.",
    (
        "A directory where a file is asked for, and the reverse, is `ResourceNotFound` to who "
        "reads and `ResourceTypeMismatch` to who creates."
    ),
    "Conditional headers, which the service does not document, are `ConditionHeadersNotSupported`.",
    "Names that take more than 255 bytes are refused, whatever their characters.",
)


def section() -> Iterator[str]:
    """The lines."""
    done = sum(route.handler is not None for route in ROUTES)
    yield _HEAD.format(done=done, all=len(ROUTES))
    for route in ROUTES:
        state = "501" if route.handler is None else "implemented"
        yield f"| {route.operation} | `{route.request}` | {state} |"
    for title, lines in (
        ("Refused with 501", _REFUSED),
        ("Kept without effect", _WITHOUT_EFFECT),
        ("Our choices", _NOTES),
    ):
        yield f"\n{title}:\n"
        yield from (f"- {line}" for line in lines)
    yield ""
