"""containerRunOptions are read as `docker create` reads them."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess

import pytest

from batch_emulator.executor.container_options import (
    SWITCHES,
    WITH_VALUE,
    OptionsError,
    parse_options,
)

VARIABLES = {
    "AZ_BATCH_TASK_WORKING_DIR": "/n/a b/wd",
    "AZ_BATCH_TASK_ID": "t",
    "HOME": "/h",
}


def words(text: str) -> list[str]:
    return [option.word() for option in parse_options(text, VARIABLES)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("--name job1_task1 --rm", ["--name=job1_task1"]),  # of the CDC's cfa_azure
        ("-l a=b --label=c=d -lx=y", ["--label=a=b", "--label=c=d", "--label=x=y"]),
        ("-it --init=0 --read-only=T", [
            "--interactive=true", "--tty=true", "--init=false", "--read-only=true",
        ]),
        ("--net host -w=/x -uroot", ["--network=host", "--workdir=/x", "--user=root"]),
        ("-e 'A=b c' --env B=", ["--env=A=b c", "--env=B="]),
        ("--rm=false --pull always", []),
        ("--shm-size 1g --", ["--shm-size=1g"]),
        ("--env --rm", ["--env=--rm"]),
    ],
)  # fmt: skip
def test_options_have_their_long_names(text: str, expected: list[str]) -> None:
    assert words(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("-v $AZ_BATCH_TASK_WORKING_DIR/in:/in:ro", "--volume=/n/a b/wd/in:/in:ro"),
        (
            "--mount type=bind,source=${AZ_BATCH_TASK_WORKING_DIR},target=/d",
            "--mount=type=bind,source=/n/a b/wd,target=/d",
        ),
        ("--workdir=$AZ_BATCH_TASK_WORKING_DIR", "--workdir=/n/a b/wd"),
        ("-e ID=$AZ_BATCH_TASK_ID.$AZ_BATCH_TASK_ID", "--env=ID=t.t"),
        ("-e H=$HOME,$AZ_BATCH_UNKNOWN", "--env=H=$HOME,$AZ_BATCH_UNKNOWN"),
    ],
)
def test_batch_variables_are_expanded_in_each_word(text: str, expected: str) -> None:
    assert words(text) == [expected]


REFUSED = [
    "--no-such", "--no-such=1", "-x", "-ix", "-l", "-il", "--label", "--init=maybe", "-i=no",
    "--interactive=", "--=x", "---x", "-i=", "-d", "--detach", "--sig-proxy=false",
]  # fmt: skip


@pytest.mark.parametrize(
    "text", [*REFUSED, "busybox", "--init busybox", "-- busybox", "'", "-", "--name=--", "--help"]
)
def test_options_that_docker_refuses_are_refused(text: str) -> None:
    with pytest.raises(OptionsError):
        parse_options(text, {})


def docker(*arguments: str) -> str:
    """Return the first line that docker prints about a container that no daemon creates."""
    nowhere = ["docker", "--host", "unix:///nowhere", "create", *arguments]
    done = subprocess.run(nowhere, capture_output=True, text=True, check=False)
    return done.stderr.partition("\n")[0]


needs_docker = pytest.mark.skipif(not shutil.which("docker"), reason="docker is not installed")


@needs_docker
@pytest.mark.parametrize("text", REFUSED)
def test_messages_are_those_of_docker(text: str) -> None:
    with pytest.raises(OptionsError) as caught:
        parse_options(text, {})
    assert str(caught.value) == docker(*shlex.split(text))


@needs_docker
def test_table_has_the_options_of_docker() -> None:
    shown = subprocess.run(
        ["docker", "create", "--help"], capture_output=True, text=True, check=True
    )
    of_docker = set(re.findall(r"^ +(?:-., )?--([a-z0-9-]+)", shown.stdout, re.MULTILINE))
    assert len(of_docker) > 90
    assert of_docker <= SWITCHES | WITH_VALUE
