"""The cause of a failed run, from its result and the end of its output."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from runner.core.diagnosis import explain_output, explain_result
from runner.protocol.results import RunResult

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
