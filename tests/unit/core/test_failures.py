"""The cause of a failed run, from its result and the end of its output."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from runner.core.diagnosis import explain_output, explain_result
from runner.protocol.results import RunResult
from runner.protocol.run_spec import CodeRef, ExcludedPath, RunSpec

STARTED = datetime(2026, 11, 24, tzinfo=UTC)


@pytest.mark.parametrize(
    "line",
    [
        "OSError: [Errno 98] Address already in use",
        "torch.distributed.DistNetworkError: The socket has failed to listen: EADDRINUSE",
    ],
)
def test_port_of_another_program_is_the_cause(line: str) -> None:
    stderr = f'Traceback (most recent call last):\n  File "train.py", line 3\n{line}\n'
    found = explain_output("python train.py exited with code 1", 1, stderr)
    assert found.cause == "PortInUse"
    assert "$MASTER_PORT" in found.fix


_FRAME = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    load()\n'


@pytest.mark.parametrize(
    ("lines", "host"),
    [
        (("RuntimeError: Error downloading a.gz:\nTried https://data.example.org/mnist/, got:\n"
          "<urlopen error [Errno -2] Name or service not known>"), "data.example.org"),
        ("urllib.error.URLError: <urlopen error [Errno 111] Connection refused>", "the server"),
        (("requests.exceptions.ConnectionError: HTTPSConnectionPool(host='hub.example.org', "
          "port=443): Max retries exceeded with url: /a (Caused by NameResolutionError())"),
         "hub.example.org"),
        (("OSError: We couldn't connect to 'https://hub.example.org' to load the files, and "
          "couldn't find them in the cached files."), "hub.example.org"),
        ("httpx.ConnectError: [Errno -3] Temporary failure in name resolution", "the server"),
        ("Exception: URL fetch failure on https://me:pass@data.example.org/a.npz: None -- [Errno]",
         "data.example.org"),
        (("aiohttp.client_exceptions.ClientConnectorDNSError: Cannot connect to host "
          "a.example.org:443 ssl:default [Name or service not known]"), "a.example.org"),
    ],
)  # fmt: skip
def test_server_that_cannot_be_reached_is_the_cause(lines: str, host: str) -> None:
    found = explain_output("it failed", 1, f"{_FRAME}{lines}\n")
    assert found.cause == "NetworkMissing"
    assert f"cannot reach {host}:" in found.fix
    assert "--data PATH" in found.fix
    assert "pass@" not in found.fix


@pytest.mark.parametrize(
    "line",
    ["curl: (6) Could not resolve host: data.example.org",
     "wget: unable to resolve host address 'data.example.org'"],
)  # fmt: skip
def test_program_that_cannot_reach_a_server_is_the_cause(line: str) -> None:
    found = explain_output("sh get.sh exited with code 6", 6, f"{line}\n")
    assert (found.cause, "cannot reach data.example.org:" in found.fix) == ("NetworkMissing", True)


def test_refused_connection_between_processes_is_no_missing_network() -> None:
    text = f"{_FRAME}ConnectionRefusedError: [Errno 111] Connection refused\n"
    assert explain_output("it failed", 1, text).cause == "ScriptError"


@pytest.mark.parametrize(
    "line",
    [
        "RuntimeError: Found no NVIDIA driver on your system. Please check that you have a GPU",
        "RuntimeError: No CUDA GPUs are available",
        "AssertionError: Torch not compiled with CUDA enabled",
        "RuntimeError: Attempting to deserialize, but torch.cuda.is_available() is False.",
        "_catboost.CatBoostError: Environment for task type [GPU] not found",
        "xgboost.core.XGBoostError: Check failed: No visible GPU is found for XGBoost.",
        "RuntimeError: Unknown backend: 'gpu' requested, but no platforms are available",
    ],
)
def test_missing_gpu_is_the_cause(line: str) -> None:
    found = explain_output("it failed", 1, f"{_FRAME}{line}\n")
    assert (found.cause, "--gpus 1" in found.fix) == ("GpuMissing", True)


@pytest.mark.parametrize(
    ("before", "line", "fix"),
    [
        ("stty: 'standard input': Inappropriate ioctl for device\n",
         "ValueError: not enough values to unpack (expected 2, got 0)", "script -qec 'python t.py"),
        ("", "OSError: [Errno 25] Inappropriate ioctl for device", "script -qec 'python t.py"),
        ("", "EOFError: EOF when reading a line", "as an argument"),
    ],
)  # fmt: skip
def test_missing_terminal_is_the_cause(before: str, line: str, fix: str) -> None:
    run = RunSpec(run_id="r", code=CodeRef("c" * 64), command=("python", "t.py", "--lr", "1"))
    found = explain_output("it failed", 1, f"{before}{_FRAME}{line}\n", spec=run)
    assert (found.cause, fix in found.fix) == ("TerminalMissing", True)
    caught = f"{before}{_FRAME}{line}\n{_FRAME}KeyError: 'y'\n"
    assert explain_output("it failed", 1, caught).cause == "ScriptError"


def test_checkpoint_that_a_newer_torch_refuses_has_a_fix() -> None:
    text = f"{_FRAME}_pickle.UnpicklingError: Weights only load failed. This file can still be\n"
    found = explain_output("it failed", 1, text)
    assert (found.cause, "torch<2.6" in found.fix) == ("ScriptError", True)


@pytest.mark.parametrize(
    ("error", "fix"),
    [
        ("ModuleNotFoundError: No module named 'sklearn'", "--package scikit-learn"),
        ("URLError: <urlopen error [Errno -2] Name or service not known>", "cannot reach"),
        ("RuntimeError: No CUDA GPUs are available", "--gpus 1"),
        ("a.ipynb needs the kernel 'ir' of R, but there is only python3", "install the kernel ir"),
        ("ValueError: x", "correct the cell"),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'a'", "correct the cell"),
    ],
)
def test_cell_that_failed_has_the_fix_of_its_cause(error: str, fix: str) -> None:
    message = f"cell In [2] of a.ipynb failed at line 1, `load()`: {error}"
    result = RunResult(
        status="failed", attempt=1, evicted=0, exit_code=1, step="command",
        code="NotebookCellFailed", message=message, started=STARTED, ended=STARTED, stages_s={},
        metrics={}, outputs=(),
    )  # fmt: skip
    found = explain_result(result)
    assert found is not None
    assert (found.cause, fix in found.fix) == ("NotebookCellFailed", True)


_FIT = """\
Traceback (most recent call last):
  File "/wd/code/main.py", line 15, in <module>
    model.fit(ds, epochs=3, steps_per_epoch=20)
  File "/env/site-packages/keras/src/utils/traceback_utils.py", line 122, in error
    raise e.with_traceback(filtered_tb) from None
  File "/env/site-packages/tensorflow/python/framework/constant_op.py", line 111, in convert
    return ops.EagerTensor(value, ctx.device_name, dtype)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
ValueError: Attempt to convert a value (PerReplica:{
  0: <tf.Tensor: shape=(32, 8), dtype=float32, numpy=
array([[0.65723413, 0.96876377, 0.9286871 , 0.29014465, 0.4431068 ,
        0.1823991 , 0.14112596, 0.27036595]], dtype=float32)>
}) with an unsupported type (<class 'tensorflow.python.distribute.values.PerReplica'>) to a Tensor.
"""  # of Keras 3.15 and TensorFlow 2.21, shortened


def test_fit_of_keras_3_on_several_workers_is_the_cause() -> None:
    found = explain_output("python main.py exited with code 1", 1, _FIT)
    assert found.cause == "KerasMultiWorker"
    assert "TF_USE_LEGACY_KERAS" in found.fix
    assert found.lines[-1].startswith("ValueError: Attempt to convert a value (PerReplica")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("model.fit(ds, epochs=3, steps_per_epoch=20)", "model(batch)"),  # a loop of its own
        ("/keras/src/", "/tf_keras/src/"),
        ("(PerReplica:{", "(<object object at 0x7f>)"),
    ],
)
def test_other_errors_of_keras_and_of_strategies_are_those_of_the_script(
    before: str, after: str
) -> None:
    assert before in _FIT
    text = _FIT.replace(before, after)
    assert explain_output("python main.py exited with code 1", 1, text).cause == "ScriptError"


def test_missing_module_is_the_cause() -> None:
    frame = (
        'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\n    import x.y\n'
    )
    found = explain_output("it failed", 1, f"{frame}ModuleNotFoundError: No module named 'x'")
    assert (found.cause, "module x" in found.fix) == ("ModuleMissing", True)
    launched = (
        "/env/bin/python: Error while finding module specification for 'torch.distributed.run' "
        "(ModuleNotFoundError: No module named 'torch')\n"
    )
    found = explain_output("it failed", 1, launched)
    assert (found.cause, "module torch" in found.fix) == ("ModuleMissing", True)
    caught = f"{frame}ModuleNotFoundError: No module named 'x'\n{frame}KeyError: 'y'"
    assert explain_output("it failed", 1, caught).cause == "ScriptError"


@pytest.mark.parametrize(
    ("line", "why", "fix"),
    [
        ("FileNotFoundError: [Errno 2] No such file or directory: 'data/a.csv'", "data/", "!data/"),
        ("FileNotFoundError: [Errno 2] No such file or directory: './c.json'", "*.json", "!c.json"),
        ("cat: data/a: No such file or directory", "data/", "!data/"),
        (
            "FileNotFoundError: [Errno 2] No such file or directory: '/n/t/wd/code/data/a'",
            "data/",
            "!",
        ),
        (
            "OSError: Unable to open file (unable to open file: name = 'data/x.h5', errno = 2, e",
            "",
            "!",
        ),
        ("FileNotFoundError: [Errno 2] No such file or directory: '../x.csv'", "", "NAME=../x.csv"),
        (
            (
                "FileNotFoundError: [Errno 2] No such file or directory: "
                "'/n/tasks/workitems/j/job-1/r/wd/demo/x.csv'"
            ),
            "",
            "../demo/x.csv is outside of the folder that was sent",
        ),
        (
            "FileNotFoundError: [Errno 2] No such file or directory: '/data/x.csv'",
            "",
            "=/data/x.csv",
        ),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'new/x.csv'", "", "writes to"),
    ],
)
def test_missing_file_is_the_cause_with_the_rule_that_left_it_out(
    line: str, why: str, fix: str
) -> None:
    left_out = (ExcludedPath("c.json", ".gitignore:1: *.json"), ExcludedPath("data/", "a: data/"))
    run = RunSpec(run_id="r", code=CodeRef("c" * 64, left_out=left_out))
    found = explain_output("it failed", 1, f"Traceback\n{line}\n", spec=run)
    assert (found.cause, fix in found.fix, why in found.message) == ("FileMissing", True, True)


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("RUNNER_DATA_DIR", "--data PATH"),
        ("RUNNER_INPUT_WORDS", "--input WORDS=PATH"),
        ("AZ_BATCHAI_INPUT_DATASET", "--input DATASET=PATH"),
        ("RUNNER_OUTPUT_PLOTS", "add plots to `named_outputs`"),
        ("RUNNER_OTHER", "correct the script"),
        ("HF_HOME", "set HF_HOME with --env"),
    ],
)
@pytest.mark.parametrize("module", ["/usr/lib/python3.8/os.py", "<frozen os>"])
def test_variable_that_a_script_lacks_is_the_cause(name: str, fix: str, module: str) -> None:
    text = (
        "Traceback (most recent call last):\n"
        f'  File "train.py", line 4, in <module>\n    src = os.environ["{name}"]\n'
        f'  File "{module}", line 679, in __getitem__\n    raise KeyError(key) from None\n'
        f"KeyError: '{name}'\n"
    )
    found = explain_output("python train.py exited with code 1", 1, text)
    assert (found.cause, fix in found.fix) == ("VariableMissing", True)
    assert found.message == f"python train.py exited with code 1: KeyError: '{name}'"
    other = text.replace(module, "/lib/mos.py")
    assert explain_output("it failed", 1, other).cause == "ScriptError"


# What these libraries print on stderr if a script has --learning-rate, but is called with --lr 0.1
# or lr=0.1. The versions are those of November 2026, except where others are named.
_ARGPARSE = "usage: train.py [-h] [--learning-rate LEARNING_RATE]\ntrain.py: error: "
_CLICK = "Usage: train.py [OPTIONS]\nTry 'train.py --help' for help.\n\nError: "
_JSONARGPARSE = """\
usage: train.py [--config CONFIG] [--learning_rate LEARNING_RATE]
tip: For details of accepted options run: train.py --help
error: """
_TYPER = """\
Usage: train.py [OPTIONS]
Try 'train.py --help' for help.
╭─ Error ──────────────────────────────────────────────────────────────────────╮
│ No such option: --lr (Possible options: --help)                              │
╰──────────────────────────────────────────────────────────────────────────────╯
"""
_TYRO = """\
╭─ Unrecognized options ─────────────────╮
│ Unrecognized options: --lr, 0.1        │
│ ────────────────────────────────────── │
│ For full helptext, run train.py --help │
╰────────────────────────────────────────╯
"""
_ABSL = """\
FATAL Flags parsing error: Unknown command line flag 'lr'
Pass --helpshort or --helpfull to see help on flags.
"""
_FIRE = """\
ERROR: Could not consume arg: --lr
Usage: train.py -

For detailed information on this command, run:
  train.py - --help
"""
_TRANSFORMERS = """\
Traceback (most recent call last):
  File "train.py", line 5, in <module>
    HfArgumentParser(A).parse_args_into_dataclasses()
  File "/env/site-packages/transformers/hf_argparser.py", line 354, in parse_args_into_dataclasses
    raise ValueError(f"Some specified arguments are not used by the HfArgumentParser: {remaining}")
ValueError: Some specified arguments are not used by the HfArgumentParser: ['--lr', '0.1']
"""
_HYDRA = """\
usage: train.py [--help] [--hydra-help] [--version] [--cfg {job,hydra,all}]
                [--resolve] [--package PACKAGE] [--run] [--multirun]
                [--shell-completion] [--config-path CONFIG_PATH]
                [--config-name CONFIG_NAME] [--config-dir CONFIG_DIR]
                [--experimental-rerun EXPERIMENTAL_RERUN]
                [--info [{all,config,defaults,defaults-tree,plugins,searchpath}]]
                [overrides ...]
train.py: error: unrecognized arguments: --lr
"""
_HYDRA_KEY = """\
Could not override 'lr'.
To append to your config use +lr=0.1
Key 'lr' is not in struct
    full_key: lr
    object_type=dict

Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.
"""
_OMEGACONF = """\
Traceback (most recent call last):
  File "train.py", line 2, in <module>
    print(OmegaConf.merge(base, c))
omegaconf.errors.ConfigKeyError: Key '--lr' is not in struct
    full_key: --lr
    object_type=dict
"""
_ANY = "If it reads NAME=VALUE: `runner sweep start RECIPE --param lr=VALUES --params-as key=value`"
_PLACE = (
    "lr is a positional argument of the script: "
    "`runner sweep start RECIPE --param lr=VALUES -- '{lr}'`"
)
_AS_HYDRA = (
    "the script reads NAME=VALUE: `runner sweep start RECIPE --param lr=VALUES --params-as hydra`"
)
_AS_FLAGS = "`runner sweep start RECIPE --param lr=VALUES --params-as flags`"


def trial(params_as: Any, name: str = "lr") -> RunSpec:
    return RunSpec(run_id="a", params_as=params_as, trial={"params": {"n": 1, name: 0.1}})


@pytest.mark.parametrize(
    ("stderr", "shown", "fix"),
    [
        (f"{_ARGPARSE}unrecognized arguments: --lr 0.1\n", "unrecognized arguments", _ANY),
        (f"{_JSONARGPARSE}unrecognized arguments: --lr 0.1\n", "unrecognized arguments", _ANY),
        (f"{_CLICK}No such option '--lr'. Did you mean '--help'?\n", "'--lr'", _ANY),
        (f"{_CLICK}No such option: --lr Did you mean --help?\n", "--lr", _ANY),  # click 8.1
        (_TYPER, "No such option: --lr", _ANY),
        (_TYRO, "Unrecognized options: --lr, 0.1", _ANY),
        (_ABSL, "Unknown command line flag 'lr'", _ANY),
        (_FIRE, "Could not consume arg: --lr", _ANY),
        (_TRANSFORMERS, "not used by the HfArgumentParser: ['--lr', '0.1']", _ANY),
        (_HYDRA, "unrecognized arguments: --lr", _AS_HYDRA),
        (_OMEGACONF, "Key '--lr' is not in struct", _AS_HYDRA),
        # A positional argument takes the value, and argparse refuses the flag.
        ("usage: t.py [-h] lr\nt.py: error: unrecognized arguments: --lr", "--lr", _PLACE),
        ("t.py: error: the following arguments are required: lr\n", "required: lr", _PLACE),
        (f"{_CLICK}Missing argument 'LR'.\n", "Missing argument 'LR'", _PLACE),
        ("ERROR: The function received no value for the required argument: lr\n", "lr", _PLACE),
        ("│ Missing value for argument 'lr'. Expected 1 values. │\n", "'lr'", _PLACE),  # tyro
    ],
)
def test_script_that_refuses_the_flag_of_a_parameter_is_explained(
    stderr: str, shown: str, fix: str
) -> None:
    found = explain_output("python train.py exited with code 2", 2, stderr, spec=trial("flags"))
    assert found.cause == "ArgumentRefused"
    assert found.message.startswith("python train.py exited with code 2: ")
    assert found.message.endswith(shown) or shown in found.message
    assert fix in found.fix
    assert explain_output("it failed", 2, stderr, spec=trial("flags", "lrs")).cause == "ScriptError"


@pytest.mark.parametrize(
    ("stderr", "fix"),
    [
        (f"{_ARGPARSE}unrecognized arguments: lr=0.1\n", _AS_FLAGS),
        (f"{_CLICK}Got unexpected extra argument (lr=0.1)\n", _AS_FLAGS),
        (_TYRO.replace("--lr, 0.1", "lr=0.1   "), _AS_FLAGS),
        (_HYDRA_KEY, "or add lr to it: `runner sweep start RECIPE --param +lr=VALUES`"),
    ],
)
def test_script_that_refuses_the_override_of_a_parameter_is_explained(
    stderr: str, fix: str
) -> None:
    found = explain_output("it failed", 2, stderr, spec=trial("hydra"))
    assert (found.cause, fix in found.fix) == ("ArgumentRefused", True), found


@pytest.mark.parametrize(
    ("stderr", "fix"),
    [
        (f"{_CLICK.replace('[OPTIONS]', 'fit [OPTIONS] LR')}No such option '--lr'.", _PLACE),
        (f"{_ARGPARSE}unrecognized arguments: --lr 0.1\n", _ANY),
        (_HYDRA, _AS_HYDRA),
    ],
)
def test_subcommand_of_a_script_is_in_the_advised_command(stderr: str, fix: str) -> None:
    spec = replace(trial("flags"), command=("python", "t.py", "fit", "--n", "1", "--lr", "0.1"))
    found = explain_output("it failed", 2, stderr, spec=spec)
    expected = fix.replace("-- '{lr}'", "-- fit '{lr}'")
    if expected == fix:
        expected = f"{fix[:-1]} -- fit`"
    assert expected in found.fix


def test_advised_command_keeps_the_names_in_braces() -> None:
    words = ("python", "t.py", "fit", "{n}", None)
    spec = replace(trial("flags"), command=("python", "t.py", "fit", "1"), template=words)
    found = explain_output("it failed", 2, _HYDRA, spec=spec)
    assert f"{_AS_HYDRA[:-1]} -- fit '{{n}}'`" in found.fix


@pytest.mark.parametrize(
    "template",
    [
        ("python", "t.py", "fit", "{lr}", None),  # the flag was forgotten
        ("python", "t.py", "fit", None),  # the option of the script precedes its subcommand
    ],
)
def test_missing_option_is_advised_with_its_flag(template: tuple[str | None, ...]) -> None:
    spec = replace(trial("flags"), template=template)
    stderr = "t.py: error: the following arguments are required: -l/--lr"
    found = explain_output("it failed", 2, stderr, spec=spec)
    advised = "`runner sweep start RECIPE --param lr=VALUES -- --lr '{lr}' fit`"
    assert (found.cause, found.fix) == (
        "ArgumentRefused", f"the script expects the option first: {advised}",
    )  # fmt: skip


def test_refused_parameter_of_a_run_names_the_options_of_train() -> None:
    spec = RunSpec(run_id="a", params={"lr": "0.1"})
    found = explain_output("it failed", 2, _HYDRA, spec=spec)
    fix = "the script reads NAME=VALUE: `runner train RECIPE --set lr=VALUE --params-as hydra`"
    assert found.fix == fix


def test_hung_run_is_explained_with_its_stacks() -> None:
    message = "every node stopped: no log line, metric or checkpoint for 600 s"
    result = RunResult(
        status="failed", attempt=1, evicted=0, exit_code=None, step="command", code="Hung",
        message=message, started=STARTED, ended=STARTED, stages_s={}, metrics={}, outputs=(),
    )  # fmt: skip
    stack = 'Current thread 0x1 (most recent call first):\n  File "train.py", line 9 in barrier\n'
    found = explain_result(result, stack)
    assert found is not None
    assert (found.cause, found.message) == ("Hung", message)
    assert found.lines[-1] == '  File "train.py", line 9 in barrier'
    assert "hang_timeout" in found.fix


def test_trial_that_did_not_start_after_failures_of_others_is_explained() -> None:
    message = "the first 5 trials failed; trial 1: python train.py exited with code 2"
    result = RunResult(
        status="cancelled", attempt=0, evicted=0, exit_code=None, step=None, code="SweepFailed",
        message=message, started=None, ended=STARTED, stages_s={}, metrics={}, outputs=(),
    )  # fmt: skip
    found = explain_result(result)
    assert found is not None
    assert (found.cause, found.message, bool(found.fix)) == ("SweepFailed", message, True)
