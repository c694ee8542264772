#!/usr/bin/env python3
"""A stub of docker, podman, az and runner, which logs each call and stores tags in a folder.

$STUB_STATE is the folder; a file `fail-WORD` in it makes calls with this first word fail.
The tests start this program hundreds of times, so it imports only fast modules.
"""

import json
import os
import sys

STATE = os.environ["STUB_STATE"]
PROGRAM = os.path.basename(sys.argv[0])
ARGUMENTS = sys.argv[1:]
DIGEST = "sha256:" + "ab" * 32


def main():
    """Print the output of the real program, as far as build.sh reads it."""
    verb = ARGUMENTS[0]
    secret = sys.stdin.read() if "--password-stdin" in ARGUMENTS else None
    with open(f"{STATE}/calls.jsonl", "a") as calls:
        calls.write(json.dumps({"program": PROGRAM, "args": ARGUMENTS, "stdin": secret}) + "\n")
    if any(os.path.exists(f"{STATE}/fail-{what}") for what in (verb, f"{PROGRAM}-{verb}")):
        sys.stderr.write(f"{PROGRAM} {verb}: broken on purpose\n")
        return 125
    if PROGRAM == "az":
        print("token-of-one-push")
    elif PROGRAM == "runner":
        print("stack.azurecr.io")
    elif verb == "build":
        remember("local", ARGUMENTS[ARGUMENTS.index("--tag") + 1])
    elif verb == "tag":
        remember("local", ARGUMENTS[2])
    elif verb == "push":
        remember("remote", ARGUMENTS[1])
    elif ARGUMENTS[:2] == ["image", "inspect"]:
        if "--format" in ARGUMENTS:
            print(f"{ARGUMENTS[-1].rsplit(':', 1)[0]}@{DIGEST}")
            return 0
        return 0 if ARGUMENTS[2] in known("local") else 1
    elif ARGUMENTS[:2] == ["manifest", "inspect"]:
        return 0 if ARGUMENTS[2].removeprefix("docker://") in known("remote") else 1
    return 0


def known(where):
    """Return the stored tags."""
    if not os.path.exists(f"{STATE}/{where}"):
        return set()
    with open(f"{STATE}/{where}") as tags:
        return set(tags.read().split())


def remember(where, tag):
    """Store a tag."""
    with open(f"{STATE}/{where}", "a") as tags:
        tags.write(tag + "\n")


sys.exit(main())
