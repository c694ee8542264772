"""The frame of the command line: imports, the format of errors, exit codes."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from runner.azure.auth.credentials import connect
from runner.cli import main as cli
from runner.cli.main import VERBS, build_app, main
from runner.cli.options import open_settings
from runner.core.home import HomePaths
from runner.flows.local.state import LocalState, local_outputs
from runner.protocol.errors import ExitCode, RunnerError
from tests.e2e import warm

HEAVY = ("azure", "pulumi", "pydantic", "numpy", "ruamel", "httpx", "psutil", "keras", "requests")


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RUNNER_HOME", str(tmp_path / "home"))
    (tmp_path / "config.yaml").touch()
    monkeypatch.setenv("RUNNER_CONFIG", str(tmp_path / "config.yaml"))
    for name in ("RUNNER_DEBUG", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)


def _runner(
    *words: str, env: dict[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("runner")
    given = {**os.environ, **(env or {})}
    return warm.run(program, words, given, cwd or Path.cwd(), timeout_s=200)


def test_paragraphs_of_a_help_text_are_filled() -> None:
    shown = CliRunner().invoke(build_app(["skus"]), ["skus", "--help"], env={"COLUMNS": "80"})
    assert " prices  \n of --region, or of all regions with --all, from the" in shown.output


@pytest.mark.parametrize(
    ("words", "allowed"),
    [
        (["--help"], set[str]()),
        # Typer parses the options of a verb with pydantic.
        (["train", "--help"], {"pydantic"}),
        (["local", "--help"], {"pydantic"}),
    ],
)
def test_help_loads_nothing_heavy(words: list[str], allowed: set[str]) -> None:
    code = (
        "import json, sys\n"
        "from runner.cli.main import main\n"
        f"code = main({words!r})\n"
        "print(json.dumps([code, sorted(sys.modules)]), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300
    )
    exit_code, loaded = json.loads(done.stderr)
    assert exit_code == 0
    assert not set(HEAVY) & {name.split(".")[0] for name in loaded} - allowed
    if words == ["--help"]:
        documents = {f"runner.protocol.{name}" for name in ("results", "run_spec", "paths")}
        assert not documents & set(loaded)
    assert "Usage" in done.stdout


def test_help_lists_every_verb_under_its_heading_in_order() -> None:
    done = _runner("--help", env={"COLUMNS": "100"})
    assert done.returncode == 0
    places = [done.stdout.index(f"│ {verb} ") for verb in VERBS]
    assert places == sorted(places)
    assert all(verb.heading in done.stdout for verb in VERBS.values())


def test_every_verb_has_a_help_text() -> None:
    for verb in VERBS:
        assert _help(verb), verb


def _help(verb: str) -> str:
    app = build_app([verb])
    if app.registered_commands:
        return (app.registered_commands[0].callback.__doc__ or "").strip()  # type: ignore[union-attr]
    return str(app.registered_groups[0].typer_instance.info.help or "")  # type: ignore[union-attr]


def test_no_arguments_print_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "Usage: runner" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["trian"], "'train'"),
        (["local", "stat"], "stat"),
        (["local", "up", "--nodes", "many"], "--nodes"),
        (["config", "show", "-o", "yaml"], "'table'"),
        (["recipe", "check"], "RECIPE"),
        (["version", "extra"], "extra"),
    ],
)
def test_usage_errors_are_one_line_with_a_fix(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == ExitCode.USAGE
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("error[R-USAGE]: ")
    assert said in shown.err
    assert "--help" in shown.err


def test_expected_error_prints_what_why_fix_and_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(words: object) -> int:
        raise RunnerError("R-X", "what", why="why", fix="fix", exit_code=ExitCode.CAPACITY)

    monkeypatch.setattr(cli, "_run", fail)
    assert main(["version"]) == ExitCode.CAPACITY
    assert capsys.readouterr().err == "error[R-X]: what\n  why: why\n  fix: fix\n"


def test_unexpected_error_is_a_bug_with_its_location(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(words: object) -> int:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(cli, "_run", fail)
    assert main(["version"]) == ExitCode.BUG
    shown = capsys.readouterr().err
    assert "ZeroDivisionError: oops" in shown
    assert "test_cli_frame.py" in shown
    assert "Traceback" not in shown
    assert main(["version", "--debug"]) == ExitCode.BUG
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.fix("R-BUG")
def test_command_that_a_bug_names_works(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(cli, "_run", lambda words: 1 // 0)
        assert main(["version"]) == ExitCode.BUG
    found = re.search(r"`runner ([\w-]+)`", capsys.readouterr().err)
    assert found
    monkeypatch.setenv("RUNNER_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert main([found[1]]) == 0
    assert list(tmp_path.glob("runner-bug-report-*.zip"))


def test_ctrl_c_exits_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(words: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_run", interrupt)
    assert main(["version"]) == 130


def test_ctrl_c_in_a_command_prints_interrupted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("platform.platform", interrupt)
    assert main(["version"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_debug_after_the_double_dash_belongs_to_the_script(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[list[str]] = []

    def record(words: list[str]) -> int:
        seen.append(words)
        return 0

    monkeypatch.setattr(cli, "_run", record)
    assert main(["train", "x", "--debug", "--", "--debug"]) == 0
    assert seen == [["train", "x", "--", "--debug"]]


def test_closed_pipe_is_quiet() -> None:
    # `exec` runs first: the reader has exited before the help is written, even on a slow machine.
    command = f"{sys.executable} -m runner --help | exec 0<&-; echo ${{PIPESTATUS[0]}}"
    done = _bash(command)
    assert done.stderr == ""
    assert done.stdout.strip() == "141"


def test_list_of_verbs_equals_the_full_help() -> None:
    whole, listed = (
        CliRunner().invoke(build_app(listed=each), ["--help"], prog_name="runner")
        for each in (False, True)
    )
    assert whole.exit_code == listed.exit_code == 0
    assert listed.output == whole.output
    assert all(verb in listed.output for verb in VERBS)


def test_ctrl_c_during_imports_prints_no_traceback() -> None:
    code = (
        "import sys, types\n"
        "class Slow(types.ModuleType):\n"
        "    def __getattr__(self, name):\n"
        "        raise KeyboardInterrupt\n"
        "sys.modules['runner.cli.main'] = Slow('slow')\n"
        "import runner.__main__\n"
        "sys.exit(runner.__main__.main())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


def test_stack_of_the_local_target_is_refused() -> None:
    done = _runner("ps", "--stack", "prod")
    assert done.returncode == 2
    assert "--target azure --stack prod" in done.stderr


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("output", ["table", "json"])
def test_full_disk_behind_stdout_is_an_expected_error(output: str, unbuffered: str) -> None:
    done = _bash(
        f"{sys.executable} -m runner version -o {output} > /dev/full; echo $?",
        PYTHONUNBUFFERED=unbuffered,
    )
    assert done.stdout.strip() == "3"
    assert done.stderr.startswith("error[R-DISK-FULL]: ")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_replaced_by_dev_null(closed: str) -> None:
    done = _bash(f"({sys.executable} -m runner version {closed}); echo $?")
    assert done.stdout.splitlines()[-1] == "0"
    assert done.stderr == ""


def test_version_as_json_names_the_sdks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version", "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["azure-batch"].startswith("15.")
    assert found["runner"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_calls_runner(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    assert "_RUNNER_COMPLETE" in capsys.readouterr().out


def test_completion_offers_the_verbs() -> None:
    done = _runner(
        env={"_RUNNER_COMPLETE": "complete_bash", "COMP_WORDS": "runner l", "COMP_CWORD": "1"}
    )
    assert done.stdout.split() == ["logs", "local"]


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("train mnist --set epochs=3 --set se", ["seed="]),
        ("train mnist --target ", ["local", "azure"]),
        ("up --stack ", ["lab"]),
        ("ps --status failed,lo", ["failed,lost"]),
        ("show x", []),
        ("ps --group x", []),
        ("train gone --set ep", []),
    ],
)
def test_completion_is_silent_without_services(
    tmp_path: Path, typed: str, offered: list[str]
) -> None:
    (tmp_path / "Pulumi.lab.yaml").write_text("")
    words = f"runner {typed}"
    env = {
        "_RUNNER_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(words.count(" ")),
        "RUNNER_HOME": str(tmp_path / "home"),
    }
    done = _runner(env=env, cwd=tmp_path)
    assert done.stdout.split() == offered
    assert done.stderr == ""


def test_completion_in_a_deleted_folder_prints_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    monkeypatch.setenv("_RUNNER_COMPLETE", "complete_bash")
    assert main([]) != 0
    assert capsys.readouterr() == ("", "")


def test_completion_is_installed_for_the_current_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SHELL", "/usr/bin/bash")
    assert main(["--install-completion"]) == 0
    assert "bash completion installed" in capsys.readouterr().err
    assert ".bash_completions" in (tmp_path / ".bashrc").read_text()
    assert main(["--show-completion", "zsh"]) == 0
    assert "compdef" in capsys.readouterr().out
    monkeypatch.setenv("SHELL", "/usr/bin/tcsh")
    assert main(["completion"]) == 2
    assert "no completion for tcsh" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["ps", "--limit", "x"], "expected a whole number such as 3"),
        (["ps", "--limit", "-1"], "the minimum is 1"),
        (["local", "evict", "--away", "x"], "invalid --away: 'x' is not a duration"),
    ],
)
def test_invalid_number_has_a_plain_error(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert said in capsys.readouterr().err


def test_config_show_names_each_origin(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runner.yaml").write_text("stack: prod\n")
    monkeypatch.setenv("RUNNER_POOL", "gpu")
    assert main(["config", "show", "-o", "json"]) == 0
    rows = {row["setting"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["stack"] == {
        "setting": "stack",
        "value": "prod",
        "origin": f"{tmp_path / 'runner.yaml'}:1",
    }
    assert rows["pool"]["origin"] == "RUNNER_POOL"
    assert rows["home"]["origin"] == "RUNNER_HOME"


def test_new_recipe_on_a_full_disk_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(source: Path, target: Path, **_: object) -> None:
        (target / "sub").mkdir(parents=True)
        raise shutil.Error([("a", "b", "[Errno 28] No space left on device: 'b'")])

    monkeypatch.setattr(shutil, "copytree", full)
    assert main(["recipe", "new", "cats"]) == ExitCode.PREFLIGHT
    shown = capsys.readouterr().err
    assert "why: [Errno 28] No space left" in shown
    assert "RUNNER_HOME" not in shown
    assert not (tmp_path / "cats").exists()


def test_recipe_check_shows_how_the_script_gets_its_parameters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import hydra\nhydra.main()(print)()\n")
    (tmp_path / "requirements.txt").write_text("hydra-core\n")
    assert main(["recipe", "check", ".", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["params_as"] == "hydra"


def test_new_recipe_can_be_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipe", "new", "mine"]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "mine")
    assert main(["recipe", "check", "./mine", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "mine"
    assert main(["recipe", "new", "mine"]) == ExitCode.USAGE
    assert main(["recipe", "new", "../mine2"]) == ExitCode.USAGE
    assert not (tmp_path.parent / "mine2").exists()


def test_recipe_ls_names_mnist(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipe", "ls", "-o", "tsv"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split("\t")[0] == "name"
    assert "mnist" in [line.split("\t")[0] for line in lines]


def test_local_env_without_services_names_local_up(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["local", "env"]) == ExitCode.PREFLIGHT
    assert "runner local up" in capsys.readouterr().err


def test_local_reset_without_a_terminal_deletes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "home" / "local").mkdir(parents=True)
    assert main(["local", "reset"]) == ExitCode.USAGE
    assert "--yes" in capsys.readouterr().err
    assert (tmp_path / "home" / "local").is_dir()


def _bash(command: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", command],
        capture_output=True,
        text=True,
        check=True,
        timeout=200,
        env={**os.environ, **env},
    )


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("runner train mnist-s", ["mnist-sklearn"]),
        ("runner show @", ["@last"]),
        ("runner show mn", []),
        ("runner schedule show n", []),
    ],
)
def test_completion_offers_recipes_without_services(line: str, offered: list[str]) -> None:
    words = str(len(line.split()) - 1)
    done = _runner(
        env={"_RUNNER_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": words}
    )
    assert done.stdout.split() == offered
    assert done.stderr == ""


@pytest.mark.slow
def test_completion_times_out_on_a_silent_network() -> None:
    paths = HomePaths(Path(os.environ["RUNNER_HOME"]))
    paths.local.mkdir(parents=True)
    paths.keys.write_text('{"batch": "a2V5", "storage": "a2V5"}')
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        outputs = local_outputs(LocalState(batch_port=port, blob_port=port, nodes=1, slots=1))
        paths.local_outputs.write_text(outputs.to_json())
        assert connect(open_settings("local", None)).outputs == outputs
        words = {"COMP_WORDS": "runner show mn", "COMP_CWORD": "2"}
        # A client waits for a response for six times one minute; `_runner` waits for one minute.
        done = _runner(env={"_RUNNER_COMPLETE": "complete_bash", **words})
    assert (done.stdout.strip(), done.stderr) == ("", "")


@pytest.mark.parametrize(
    ("path", "code", "fix"),
    [
        ("curves.png", "R-PLOT-FORMAT", "--plot curves.svg"),
        ("curves", "R-PLOT-FORMAT", "--plot curves.svg"),
        ("", "R-PLOT-FORMAT", "--plot metrics.svg"),
        (".", "R-PLOT-FORMAT", "--plot metrics.svg"),
        ("/", "R-PLOT-FORMAT", "--plot /metrics.svg"),
        ("..", "R-PLOT-FORMAT", "--plot ../metrics.svg"),
        ("folder.svg", "R-PLOT-FORMAT", "--plot folder.svg/metrics.svg"),
        ("no/such/curves.svg", "R-PLOT-WRITE", "create it, or use another file with --plot"),
    ],
)
def test_invalid_plot_file_is_rejected_before_any_request(
    path: str, code: str, fix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("folder.svg").mkdir()
    for words in (["metrics"], ["sweep", "show", "@last"]):
        assert main([*words, "--plot", path]) in (2, 3)
        said = capsys.readouterr().err
        assert f"error[{code}]" in said
        assert f"fix: {fix}\n" in said
