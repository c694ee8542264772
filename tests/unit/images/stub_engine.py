#!/usr/bin/env python3
"""Stands for docker, podman, az and runner: writes down each call, remembers tags in a folder.

$STUB_STATE is that folder; `fail-WORD` in it makes the call with that first word fail.
It imports little: the tests call it hundreds of times.
"""

import json
import os
import sys

STATE = os.environ["STUB_STATE"]
PROGRAM = os.path.basename(sys.argv[0])
ARGUMENTS = sys.argv[1:]
DIGEST = "sha256:" + "ab" * 32


def main():
    """Answer as the real program would, as far as build.sh looks."""
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
    """The tags that are there."""
    if not os.path.exists(f"{STATE}/{where}"):
        return set()
    with open(f"{STATE}/{where}") as tags:
        return set(tags.read().split())


def remember(where, tag):
    """One more tag."""
    with open(f"{STATE}/{where}", "a") as tags:
        tags.write(tag + "\n")


sys.exit(main())
