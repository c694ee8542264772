"""All operations of the Files service, by the names of its OpenAPI description.

What an account SAS needs for each is in "Create an account SAS" (learn.microsoft.com): the resource
type, and one of the permissions. A service SAS needs the same permissions, on objects only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from batch_emulator.files_share.auth import Grant
from batch_emulator.files_share.call import FilesHandler
from batch_emulator.files_share.faults import FilesFault, not_implemented
from batch_emulator.files_share.routes import copies, directories, files, shares
from batch_emulator.files_share.routes import directories as renames
from batch_emulator.files_share.routes import files as ranges
from batch_emulator.files_share.routes import shares as shares_


@dataclass(frozen=True, slots=True)
class FilesRoute:
    """One operation. `level` is service, share or path; `header` must be there to choose it.

    `permissions` is empty where a SAS never suffices; `by_share` says that one of a share does.
    """

    operation: str
    method: str
    level: str
    restype: str
    comp: str
    handler: FilesHandler | None
    resource: str
    permissions: str
    header: str = ""
    by_share: bool = False

    @property
    def request(self) -> str:
        """Method, path and query as documentation spells them."""
        path = {"service": "/", "share": "/{share}", "path": "/{share}/{path}"}[self.level]
        pairs = (("restype", self.restype), ("comp", self.comp))
        query = "&".join(f"{name}={value}" for name, value in pairs if value)
        return f"{self.method} {path}{'?' if query else ''}{query}"


def _of_service(
    name: str, method: str, comp: str, handler: FilesHandler | None, sas: str
) -> FilesRoute:
    restype = "" if comp == "list" else "service"
    return FilesRoute(f"Service_{name}", method, "service", restype, comp, handler, "s", sas)


def _of_share(
    name: str, method: str, comp: str, handler: FilesHandler | None, sas: str
) -> FilesRoute:
    return FilesRoute(f"Share_{name}", method, "share", "share", comp, handler, "c", sas)


def _of_directory(
    name: str, method: str, comp: str, handler: FilesHandler | None, sas: str
) -> FilesRoute:
    resource = "c" if comp == "list" else "o"
    restype = "" if "handles" in comp else "directory"
    return FilesRoute(
        f"Directory_{name}", method, "path", restype, comp, handler, resource, sas, by_share=True
    )


def _of_file(
    name: str,
    method: str,
    comp: str,
    handler: FilesHandler | None,
    sas: str,
    *,
    header: str = "",
    restype: str = "",
) -> FilesRoute:
    return FilesRoute(
        f"File_{name}", method, "path", restype, comp, handler, "o", sas, header, by_share=True
    )


FILES_ROUTES: tuple[FilesRoute, ...] = (
    _of_service("SetProperties", "PUT", "properties", shares.set_service_properties, "w"),
    _of_service("GetProperties", "GET", "properties", shares.get_service_properties, "r"),
    _of_service("ListSharesSegment", "GET", "list", shares.list_shares, "l"),
    _of_service("GetUserDelegationKey", "POST", "userdelegationkey", None, ""),
    _of_share("Create", "PUT", "", shares_.create, "cw"),
    _of_share("GetProperties", "GET", "", shares_.get_properties, "r"),
    _of_share("Delete", "DELETE", "", shares_.delete, "d"),
    _of_share("Lease", "PUT", "lease", shares_.lease, "w"),
    _of_share("CreateSnapshot", "PUT", "snapshot", None, "cw"),
    _of_share("CreatePermission", "PUT", "filepermission", shares_.create_permission, "w"),
    _of_share("GetPermission", "GET", "filepermission", shares_.get_permission, "r"),
    _of_share("SetProperties", "PUT", "properties", shares_.set_properties, "w"),
    _of_share("SetMetadata", "PUT", "metadata", shares_.set_metadata, "w"),
    _of_share("GetMetadata", "GET", "metadata", shares_.get_properties, "r"),
    _of_share("GetAccessPolicy", "GET", "acl", shares_.get_acl, ""),
    _of_share("SetAccessPolicy", "PUT", "acl", shares_.set_acl, ""),
    _of_share("GetStatistics", "GET", "stats", shares_.get_statistics, "r"),
    _of_share("Restore", "PUT", "undelete", None, "w"),
    _of_directory("Create", "PUT", "", directories.create, "cw"),
    _of_directory("GetProperties", "GET", "", directories.get_properties, "r"),
    _of_directory("Delete", "DELETE", "", directories.delete, "d"),
    _of_directory("SetProperties", "PUT", "properties", directories.set_properties, "w"),
    _of_directory("SetMetadata", "PUT", "metadata", directories.set_metadata, "w"),
    _of_directory("GetMetadata", "GET", "metadata", directories.get_properties, "r"),
    _of_directory("ListFilesAndDirectoriesSegment", "GET", "list", directories.list_entries, "l"),
    _of_directory("ListHandles", "GET", "listhandles", directories.list_handles, "l"),
    _of_directory("ForceCloseHandles", "PUT", "forceclosehandles", directories.close_handles, "w"),
    _of_directory("Rename", "PUT", "rename", renames.rename, "w"),
    _of_file("Create", "PUT", "", files.create, "cw"),
    _of_file("StartCopy", "PUT", "", copies.start_copy, "cw", header="x-ms-copy-source"),
    _of_file("Download", "GET", "", files.download, "r"),
    _of_file("GetProperties", "HEAD", "", files.get_properties, "r"),
    _of_file("Delete", "DELETE", "", files.delete, "d"),
    _of_file("SetHttpHeaders", "PUT", "properties", files.set_properties, "w"),
    _of_file("SetMetadata", "PUT", "metadata", files.set_metadata, "w"),
    _of_file("GetMetadata", "GET", "metadata", files.get_properties, "r"),
    _of_file("Lease", "PUT", "lease", files.lease, "w"),
    _of_file("UploadRange", "PUT", "range", ranges.put, "w"),
    _of_file(
        "UploadRangeFromURL",
        "PUT",
        "range",
        copies.put_range_from_url,
        "w",
        header="x-ms-copy-source",
    ),
    _of_file("GetRangeList", "GET", "rangelist", ranges.list_ranges, "r"),
    _of_file("AbortCopy", "PUT", "copy", copies.abort_copy, "w"),
    _of_file("Rename", "PUT", "rename", renames.rename, "w"),
    _of_file("CreateSymbolicLink", "PUT", "", None, "cw", restype="symboliclink"),
    _of_file("GetSymbolicLink", "GET", "", None, "r", restype="symboliclink"),
    _of_file("CreateHardLink", "PUT", "", None, "cw", restype="hardlink"),
)


def _by_key(routes: Iterable[FilesRoute]) -> Mapping[tuple[str, str, str, str], list[FilesRoute]]:
    found: dict[tuple[str, str, str, str], list[FilesRoute]] = {}
    for route in routes:
        key = (route.method, route.level, route.restype, route.comp)
        found.setdefault(key, []).append(route)
    for alternatives in found.values():
        alternatives.sort(key=lambda route: not route.header)
    return found


_BY_KEY = _by_key(FILES_ROUTES)


def find(
    method: str, path: str, query: Mapping[str, str], headers: Mapping[str, str]
) -> tuple[FilesRoute, str, str]:
    """The operation of a request with its share and path, which is below the account's and raw.

    Raises Fault.
    """
    share, _, inner = path.strip("/").partition("/")
    restype, comp = query.get("restype", "").lower(), query.get("comp", "").lower()
    level = "path" if share else "service"
    if restype == "share" or (share and not inner and not restype and comp not in _OF_ROOT):
        level = "share"
    for verb in (method, "GET") if method == "HEAD" else (method,):
        for route in _BY_KEY.get((verb, level, restype, comp), ()):
            if not route.header or route.header in headers:
                return route, share, inner
    others = {m for m, *rest in _BY_KEY if rest == [level, restype, comp]}
    if others:
        raise FilesFault("UnsupportedHttpVerb", {"Verb": method})
    known = {(route.level, route.comp) for route in FILES_ROUTES}
    if (level, comp) not in known:
        raise FilesFault(
            "InvalidQueryParameterValue", {"QueryParameterName": "comp", "Value": comp}
        )
    raise FilesFault("InvalidUri")


# Azure Files has no conditional operations; what it answers is not documented. [S]
_CONDITIONS = ("if-match", "if-none-match", "if-modified-since", "if-unmodified-since")
_OF_ROOT = ("listhandles", "forceclosehandles")


def authorize(route: FilesRoute, grant: Grant | None) -> None:
    """Whether a signature allows the operation. Raises Fault."""
    if grant is None:
        return
    if grant.resource_types is None:
        if not route.by_share or (route.comp == "list" and not grant.whole_share):
            raise FilesFault("AuthorizationResourceTypeMismatch")
    elif route.resource not in grant.resource_types:
        raise FilesFault("AuthorizationResourceTypeMismatch")
    if not set(route.permissions) & set(grant.permissions):
        raise FilesFault("AuthorizationPermissionMismatch")


def check_emulated(
    route: FilesRoute, query: Mapping[str, str], headers: Mapping[str, str]
) -> FilesHandler:
    """The handler of an operation that is emulated. Raises Fault."""
    if route.handler is None:
        raise not_implemented(route.operation)
    for name in ("sharesnapshot", "prevsharesnapshot"):
        if name in query:
            raise not_implemented(f"{route.operation} ({name})")
    if "x-ms-structured-body" in headers:
        raise not_implemented(f"{route.operation} (x-ms-structured-body)")
    for name in _CONDITIONS:
        if name in headers:
            raise FilesFault("ConditionHeadersNotSupported", {"HeaderName": name})
    return route.handler
