"""`access.js` against Azurite whose code has changed: it never starts without its protection."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from runner.flows.local.azurite import SCRIPTS

NODE = shutil.which("node") or ""
[ACCESS] = [path for path in SCRIPTS if path.name == "access.js"]
_UTILS = """
const crypto = require("crypto"), constants_1 = require("./constants");
exports.getUserDelegationKeyValue = (oid, tid, start, expiry, version) =>
  crypto.createHmac("sha256", constants_1.USERDELEGATIONKEY_SIGNING_SEED)
    .update([oid, tid, start, expiry, "b", version].join("\\n")).digest("base64");
"""
_ACCOUNTS = """
exports.default = class {
  constructor() { this.accounts = {}; }
  getAccount(name) { return this.accounts[name]; }
};
"""
# The parts of Azurite that the script changes, and a main program.
_CODE: Mapping[str, str] = {
    "blob/utils/constants.js": 'exports.USERDELEGATIONKEY_SIGNING_SEED = "public";',
    "blob/utils/utils.js": _UTILS,
    "blob/authentication/BlobSASAuthenticator.js": "(0, utils_1.getUserDelegationKeyValue)(1)",
    "blob/handlers/ServiceHandler.js": "(0, utils_1.getUserDelegationKeyValue)(1)",
    "blob/handlers/BlobHandler.js": (
        "exports.default = class { startCopyFromURL() {} copyFromURL() {} };"
    ),
    "blob/errors/StorageErrorFactory.js": "exports.default = class {};",
    "common/AccountDataStore.js": _ACCOUNTS,
    "blob/main.js": 'console.log("started");',
}
_CHANGED = {
    "seed-in-another-constant": {
        "blob/utils/utils.js": _UTILS.replace("constants_1.USERDELEGATIONKEY_SIGNING_SEED", '"v2"')
    },
    "another-function": {"blob/utils/utils.js": "exports.deriveKey = () => 1;"},
    "keys-made-by-the-authenticator": {
        "blob/authentication/BlobSASAuthenticator.js": 'createHmac("sha256", "public")'
    },
    "keys-made-by-the-handler": {"blob/handlers/ServiceHandler.js": "deriveKey()"},
    "frozen-constants": {
        "blob/utils/constants.js": (
            'module.exports = Object.freeze({ USERDELEGATIONKEY_SIGNING_SEED: "public" });'
        )
    },
    "accounts-found-elsewhere": {
        "common/AccountDataStore.js": (
            "exports.default = class { constructor() { this.getAccount = () => ({}); } };"
        )
    },
    "copies-made-elsewhere": {"blob/handlers/BlobHandler.js": "exports.default = class {};"},
}


def _start(folder: Path, changed: Mapping[str, str], seed: str) -> subprocess.CompletedProcess[str]:
    if not NODE:
        pytest.skip("no node on PATH")
    for name, text in {**_CODE, **changed}.items():
        path = folder / "dist" / "src" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    main = folder / "dist" / "src" / "blob" / "main.js"
    return subprocess.run(
        [NODE, "--require", str(ACCESS), str(main)],
        env={"BATCH_EMULATOR_STORAGE_SEED": seed},
        capture_output=True,
        text=True,
        check=False,
    )


def test_known_code_of_azurite_starts(tmp_path: Path) -> None:
    done = _start(tmp_path, {}, "a seed")
    assert (done.returncode, done.stdout, done.stderr) == (0, "started\n", "")


@pytest.mark.attack
@pytest.mark.parametrize("change", _CHANGED)
def test_changed_code_of_azurite_does_not_start_unprotected(tmp_path: Path, change: str) -> None:
    done = _start(tmp_path, _CHANGED[change], "a seed")
    assert (done.returncode, done.stdout) == (1, "")
    assert "error: cannot restrict access to Azurite: " in done.stderr


@pytest.mark.attack
def test_azurite_does_not_start_without_a_seed(tmp_path: Path) -> None:
    done = _start(tmp_path, {}, "")
    assert (done.returncode, done.stdout) == (1, "")
    assert "BATCH_EMULATOR_STORAGE_SEED is not set" in done.stderr
