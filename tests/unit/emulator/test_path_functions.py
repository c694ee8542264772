"""Functions of the emulator that reach files by a path are on a list, with the reason.

A path is resolved again at each call, so a task that replaces a folder by a link diverts it. What
tasks can change goes through `batch_emulator.folders`, which follows no link.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import batch_emulator

_ROOT = Path(batch_emulator.__file__).parent
_PLACES = (
    *("executor", "files_share", "storage", "http", "domain/applications.py"),
    *("emulator.py", "launches.py", "loop.py", "server.py", "__main__.py"),
)
# fmt: off
_NAMES = frozenset({
    "access", "chmod", "chown", "copy", "copy2", "copyfile", "copytree", "extract",
    "extractall", "fwalk", "glob", "hardlink_to", "iterdir", "lchown", "link", "link_to",
    "listdir", "makedirs", "mkdir", "mkfifo", "mknod", "move", "open", "read_bytes",
    "read_text", "removedirs", "removexattr", "rename", "renames", "rglob", "rmdir", "rmtree",
    "scandir", "setxattr", "symlink", "symlink_to", "touch", "truncate", "unlink", "utime",
    "walk", "write_bytes", "write_text", "NamedTemporaryFile", "TemporaryDirectory",
    "mkdtemp", "mkstemp",
})
# fmt: on
_ON_DESCRIPTORS = ("dir_fd", "src_dir_fd", "dst_dir_fd")

PRIVATE = "in the data dir, which tasks cannot reach"
BESIDE = "beside the root of a node: tasks cannot replace the folder of their node"
FRESH = "tasks get the folder only when it is complete"
ROOT_OWNED = "folders above those of the tasks belong to the emulator"
DESCRIPTOR = "of an open folder"
SYSTEM = "a file of the system"
OPTION = "in a folder that an option names, read at the start"
TEMPORARY = "a new private folder"
NOT_FILES = "no file: a container, or a time"
SIZES = "reads names or sizes only, and follows no link at the end of a path"

ALLOWED: dict[str, str] = {
    "__main__.py:_stop_when_deleted open": PRIVATE,
    "domain/applications.py:Applications.read glob": PRIVATE,
    "domain/applications.py:Applications.read read_text": PRIVATE,
    "domain/applications.py:Applications.__init__ rmtree": PRIVATE,
    "domain/applications.py:Applications._put mkdir": PRIVATE,
    "domain/applications.py:Applications._put rename": PRIVATE,
    "domain/applications.py:Applications._put unlink": PRIVATE,
    "domain/applications.py:Applications._save mkdir": PRIVATE,
    "domain/applications.py:Applications.delete rmtree": PRIVATE,
    "domain/applications.py:Applications.delete unlink": PRIVATE,
    "domain/applications.py:Applications.store mkdir": PRIVATE,
    "domain/applications.py:Applications.store unlink": PRIVATE,
    "domain/applications.py:Certificates.read read_text": PRIVATE,
    "domain/applications.py:_replace open": PRIVATE,
    "domain/applications.py:_replace rename": PRIVATE,
    "domain/applications.py:_replace unlink": PRIVATE,
    "executor/node_images.py:_variables read_text": OPTION,
    "executor/task_containers.py:TaskContainers.engine write_text": PRIVATE,
    "executor/task_containers.py:TaskContainers.remove_leftovers read_text": PRIVATE,
    "http/routes/nodes.py:_collect_logs NamedTemporaryFile": PRIVATE,
    "http/routes/nodes.py:_send_logs rmtree": PRIVATE,
    "http/routes/nodes.py:upload_service_logs mkdir": PRIVATE,
    "http/routes/nodes.py:upload_service_logs mkdtemp": PRIVATE,
    "http/routes/state.py:export_account mkdir": PRIVATE,
    "http/routes/state.py:export_account open": PRIVATE,
    "http/routes/state.py:export_account unlink": PRIVATE,
    "http/routes/state.py:import_account mkdir": PRIVATE,
    "http/routes/state.py:import_account open": PRIVATE,
    "http/routes/state.py:import_account unlink": PRIVATE,
    "storage/account_store.py:AccountStore.__init__ mkdir": PRIVATE,
    "storage/account_store.py:store_name rename": PRIVATE,
    "storage/account_store.py:store_name write_text": PRIVATE,
    "storage/account_store.py:stored_name read_text": PRIVATE,
    "storage/account_store.py:AccountStore.__init__ open": PRIVATE,
    "storage/account_store.py:AccountStore.follow_storage read_text": PRIVATE,
    "storage/account_store.py:AccountStore.follow_storage write_text": PRIVATE,
    "storage/exports.py:_files_of glob": PRIVATE,
    "storage/exports.py:_files_of open": PRIVATE,
    "storage/exports.py:_replaced open": PRIVATE,
    "storage/exports.py:_replaced replace": PRIVATE,
    "storage/exports.py:_replaced truncate": PRIVATE,
    "storage/exports.py:_replaced unlink": PRIVATE,
    "storage/exports.py:_write read_text": PRIVATE,
    "storage/exports.py:_write_file mkdir": PRIVATE,
    "storage/exports.py:_write_file open": PRIVATE,
    "storage/exports.py:_write_file replace": PRIVATE,
    "storage/exports.py:_write_file unlink": PRIVATE,
    "storage/exports.py:import_account write_text": PRIVATE,
    "storage/exports.py:is_export open": PRIVATE,
    "emulator.py:Emulator._delete_leftovers glob": ROOT_OWNED,
    "executor/isolation.py:Isolation.close_folders chmod": ROOT_OWNED,
    "executor/isolation.py:Isolation.close_folders iterdir": ROOT_OWNED,
    "executor/isolation.py:Isolation.settle mkdir": ROOT_OWNED,
    "executor/isolation.py:Isolation.settle symlink_to": ROOT_OWNED,
    "executor/isolation.py:Isolation.settle unlink": ROOT_OWNED,
    "executor/isolation.py:_claim chmod": ROOT_OWNED,
    "executor/isolation.py:_claim open": ROOT_OWNED,
    "executor/isolation.py:Isolation._give_shared iterdir": ROOT_OWNED,
    "executor/isolation.py:Isolation.close_folders chown": ROOT_OWNED,
    "executor/isolation.py:Isolation.prepare_node glob": ROOT_OWNED,
    "executor/isolation.py:_holds_files walk": SIZES,
    "executor/isolation.py:_is_gone iterdir": ROOT_OWNED,
    "executor/isolation.py:_records iterdir": ROOT_OWNED,
    "executor/isolation.py:_registry mkdir": ROOT_OWNED,
    "executor/isolation.py:_remove_if_abandoned listdir": DESCRIPTOR,
    "executor/isolation.py:_uids_of_processes glob": SYSTEM,
    "executor/isolation.py:_claim truncate": ROOT_OWNED,
    "executor/isolation.py:_make_passable chmod": ROOT_OWNED,
    "executor/isolation.py:_move copytree": ROOT_OWNED,
    "executor/isolation.py:_move rename": ROOT_OWNED,
    "executor/node_mounts.py:NodeMounts._export mkdir": ROOT_OWNED,
    "files_share/routes/copies.py:_receive open": ROOT_OWNED,
    "files_share/routes/copies.py:start_copy unlink": ROOT_OWNED,
    "files_share/shares.py:Shares.__init__ mkdir": ROOT_OWNED,
    "files_share/shares.py:Shares._add_existing_folders scandir": ROOT_OWNED,
    "files_share/shares.py:Shares.create mkdir": ROOT_OWNED,
    "files_share/shares.py:Shares.delete mkdir": ROOT_OWNED,
    "files_share/shares.py:Shares.delete rename": ROOT_OWNED,
    "files_share/shares.py:Shares.path mkdir": ROOT_OWNED,
    "files_share/tree.py:open_entry open": ROOT_OWNED,
    "loop.py:Loop._move_to_trash mkdir": ROOT_OWNED,
    "executor/application_packages.py:PackageInstaller._install_for_pool write_text": BESIDE,
    "executor/application_packages.py:installed read_text": BESIDE,
    "executor/blob_mounts.py:Blobfuse._output read_text": BESIDE,
    "executor/blob_mounts.py:Blobfuse._prepare mkdir": BESIDE,
    "executor/blob_mounts.py:Blobfuse._prepare open": BESIDE,
    "executor/blob_mounts.py:Blobfuse._prepare rmtree": BESIDE,
    "executor/blob_mounts.py:Blobfuse._prepare unlink": BESIDE,
    "executor/blob_mounts.py:Blobfuse.mount open": BESIDE,
    "executor/blob_mounts.py:Blobfuse.mount unlink": BESIDE,
    "executor/blob_mounts.py:_unmount read_text": BESIDE,
    "executor/blob_mounts.py:_unmount rmtree": BESIDE,
    "executor/blob_mounts.py:_unmount unlink": BESIDE,
    "executor/blob_mounts.py:forget_leftovers glob": BESIDE,
    "executor/blob_mounts.py:forget_leftovers unlink": BESIDE,
    "executor/blob_mounts.py:unmount_leftovers glob": BESIDE,
    "executor/layout.py:NodeLayout.create unlink": BESIDE,
    "executor/mirror.py:Mirror._pull_one unlink": BESIDE,
    "executor/mirror.py:MirrorRecords._write open": BESIDE,
    "executor/mirror.py:MirrorRecords.save open": BESIDE,
    "executor/mirror.py:MirrorRecords.save rename": BESIDE,
    "executor/mirror.py:_lines read_text": BESIDE,
    "executor/task_containers.py:TaskContainers.create unlink": BESIDE,
    "executor/task_containers.py:_write_secret open": BESIDE,
    "launches.py:NodeNames.write chmod": BESIDE,
    "executor/application_packages.py:_unpack mkdir": FRESH,
    "executor/application_packages.py:_unpack rename": FRESH,
    "executor/application_packages.py:_unpack_one chmod": FRESH,
    "executor/application_packages.py:_unpack_one mkdir": FRESH,
    "executor/application_packages.py:_unpack_one open": FRESH,
    "executor/node_python.py:BasePython.make chmod": FRESH,
    "executor/node_python.py:BasePython.make mkdir": FRESH,
    "executor/node_python.py:BasePython.make symlink_to": FRESH,
    "executor/node_python.py:BasePython.make touch": FRESH,
    "executor/node_python.py:BasePython.make write_text": FRESH,
    "executor/blob_mounts.py:_mount_points read_bytes": SYSTEM,
    "executor/blob_mounts.py:blobfuse_program access": SYSTEM,
    "executor/processes.py:_bytes open": SYSTEM,
    "executor/processes.py:_from_proc listdir": SYSTEM,
    "executor/task_process.py:_open_counters open": SYSTEM,
    "executor/executor.py:Executor._run_in_instance_container open": NOT_FILES,
    "http/routes/pools.py:_change touch": NOT_FILES,
    "http/routes/seeding.py:plant copy": NOT_FILES,
    "executor/mirror.py:_walk scandir": DESCRIPTOR,
    "executor/node_files.py:_scan scandir": DESCRIPTOR,
    "executor/task_files.py:_entries scandir": DESCRIPTOR,
    "files_share/routes/copies.py:_local open": DESCRIPTOR,
    "files_share/routes/files.py:download open": DESCRIPTOR,
    "files_share/smb.py:set_times utime": DESCRIPTOR,
    "files_share/tree.py:TreeEntry.opened open": DESCRIPTOR,
    "files_share/tree.py:TreeEntry.page scandir": DESCRIPTOR,
    "files_share/tree.py:_find listdir": DESCRIPTOR,
    "executor/task_containers.py:TaskContainers._prepare TemporaryDirectory": TEMPORARY,
    "executor/task_containers.py:TaskContainers.fetch TemporaryDirectory": TEMPORARY,
    "server.py:Server.__init__ TemporaryDirectory": TEMPORARY,
    "files_share/shares.py:_sizes scandir": SIZES,
}


def _calls(tree: ast.AST, scope: str = "") -> Iterator[tuple[str, ast.Call]]:
    """Yield the calls below a node with the qualified name of their function."""
    for node in ast.iter_child_nodes(tree):
        inner = scope
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inner = f"{scope}.{node.name}".lstrip(".")
        if isinstance(node, ast.Call):
            yield scope, node
        yield from _calls(node, inner)


def _is_path_method(call: ast.Call) -> bool:
    """Return True for os.remove, os.replace and Path.replace, but not for those of other types."""
    match call.func:
        case ast.Attribute(ast.Name("os"), "remove" | "replace"):
            return True
        case ast.Attribute(_, "replace"):
            return len(call.args) == 1 and not call.keywords
        case _:
            return False


def _used(path: Path) -> Iterator[str]:
    for scope, call in _calls(ast.parse(path.read_text(encoding="utf-8"))):
        name = getattr(call.func, "attr", getattr(call.func, "id", ""))
        keywords = {keyword.arg for keyword in call.keywords}
        if (name in _NAMES or _is_path_method(call)) and keywords.isdisjoint(_ON_DESCRIPTORS):
            yield f"{path.relative_to(_ROOT).as_posix()}:{scope} {name}"


def _found() -> set[str]:
    places = [_ROOT / place for place in _PLACES]
    files = [
        file for place in places for file in ([place] if place.suffix else place.rglob("*.py"))
    ]
    return {use for file in files for use in _used(file)}


def test_files_are_reached_by_path_only_where_tasks_cannot_write() -> None:
    found = _found()
    assert not sorted(found - ALLOWED.keys()), "use batch_emulator.folders, or name the reason"
    assert not sorted(ALLOWED.keys() - found), "these are no longer used"
