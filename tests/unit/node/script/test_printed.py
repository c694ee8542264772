"""Metrics in the text that scripts of other systems print, without a pattern in the recipe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.node.script import printed as printed_module
from runner.node.script.metrics import MetricLog
from runner.node.script.printed import PrintedMetrics, PrintedSteps
from runner.node.script.shipper import LineQueue
from tests.unit.node.agent_task import Task

Found = list[tuple[str, Any, int | None]]


def read(*pieces: str, wanted: tuple[str, ...] = ()) -> Found:
    queue = LineQueue()
    printed = PrintedMetrics(MetricLog(1, queue), wanted)
    for piece in pieces:
        printed.feed(piece.encode())
    printed.finish()
    lines = [json.loads(line) for line in queue.peek().splitlines()]
    return [(line["name"], line["value"], line["step"]) for line in lines]


KERAS_2 = (
    "Epoch 1/2\n128/512 [=>....] - ETA: 5s - loss: 2.3 - acc: 0.1\n"
    "512/512 [======] - 8s 131us/step - loss: 0.5 - acc: 0.8 - val_loss: 0.4 - val_acc: 0.9\n"
    "Epoch 2/2\n512/512 [======] - 8s 131us/step - loss: 0.3 - acc: 0.9\nTest loss: 0.2\n"
)
KERAS_3 = (
    "Epoch 1/1\n\x1b[1m1/4\x1b[0m \x1b[32m━\x1b[0m\x1b[37m━━━\x1b[0m \x1b[1m7s\x1b[0m 7ms/step - "
    "accuracy: 0.1 - loss: 2.1\b\b\b\b\r\x1b[1m4/4\x1b[0m \x1b[32m━━━━\x1b[0m\x1b[37m\x1b[0m "
    "\x1b[1m7s\x1b[0m 7ms/step - accuracy: 0.8 - loss: 0.6\n"
)
CHAINER = (
    "\x1b[Jepoch       main/loss   validation/main/loss  main/accuracy  elapsed_time\n"
    "\x1b[J1           0.190916    0.0866891             0.942533       5.6\n"
    "\x1b[J2           0.07                              0.97           9.1\ndone\n3 4 5\n"
)
CHAINER_BAR = (
    "epoch       main/loss   iteration\n"
    + "\x1b[J     total [##..........]  5.00%\nthis epoch [############] 99.90%\n"
    "       617 iter, 0 epoch / 20 epochs\n    51.234 iters/sec. Estimated time to finish: 0:03.\n"
    "\x1b[4A"
    * 60
    + "\x1b[J1           0.190916    617\n     total [####........] 10.00%\nsaved\n"
    + "2           0.09        1234\n"
)
CNTK = (
    "Finished Epoch[1 of 2]: [Training] loss = 0.304587 * 60000, metric = 8.91% * 60000 8.226s\n"
    "Finished Evaluation [1]: Minibatch[1-10]: metric = 1.21% * 10000;\n"
)
PYTORCH = (
    "Train Epoch: 1 [0/60000 (0%)]\tLoss: 2.300039\nTrain Epoch: 1 [640/60000 (1%)]\tLoss: 2.2\n"
    "Train Epoch: 5 [0/60000 (0%)]\tLoss: 2.0\n"
    "\nTest set: Average loss: 0.0456, Accuracy: 9850/10000 (98%)\n"
)
TENSORFLOW = "0 -- Training accuracy: 0.93 \b Validation accuracy: 0.95\n"
AZURE_ML = "Attempted to log scalar metric Accuracy:\n0.97\nAttempted to log image metric x:\n1.0\n"
TRAINER = "{'loss': 0.4, 'learning_rate': 5e-05, 'epoch': 1.0}\n{'eval_f1': 0.9, 'epoch': 1.0}\n"
FASTAI = "epoch     train_loss  accuracy  time\n0         0.230000    0.910000  00:12     \n"
IMAGENET = "Epoch: [0][  10/5005]\tTime  0.4 ( 0.5)\tLoss 6.9e+00 (6.9)\tAcc@1   0.25 (  0.39)\n"
TWO_BARS = (
    "Epoch 1: 100%|##| 9/9 [00:01<00:00, 9it/s, loss=0.5]\r"
    "Epoch 2:  50%|# | 4/9 [00:01<00:00, 9it/s, loss=0.4]\r"
    "Epoch 2: 100%|##| 9/9 [00:01<00:00, 9it/s, loss=0.3]\n"
)
COCO = (
    "IoU metric: bbox\n"
    " Average Precision  (AP) @[ IoU=0.50:0.95 | area=   all | maxDets=100 ] = 0.373\n"
    " Average Precision  (AP) @[ IoU=0.75      | area=   all | maxDets=100 ] = 0.401\n"
    " Average Precision  (AP) @[ IoU=0.50:0.95 | area= small | maxDets=100 ] = -1.000\n"
    " Average Precision  (AP) @[ IoU=0.50:0.95 | area= large | maxDets=100 ] = 0.512\n"
    " Average Recall     (AR) @[ IoU=0.50:0.95 | area=   all | maxDets=  1 ] = 0.311\n"
    " Average Recall     (AR) @[ IoU=0.50:0.95 | area=medium | maxDets=100 ] = 0.601\n"
)
YOLO = (
    "                 Class     Images  Instances      Box(P          R      mAP50  mAP50-95)     "
    "Mask(P          R      mAP50  mAP50-95): 100%|##| 2/2 [00:01<00:00,  1.9it/s]\n"
    "                   all          4         17      0.576      0.833      0.791      0.604      "
    "0.545       0.75      0.734      0.512\n"
)
PRINTED: dict[str, tuple[str, Found]] = {
    "Keras 2": (
        KERAS_2,
        [
            ("loss", 0.5, 1), ("acc", 0.8, 1), ("val_loss", 0.4, 1), ("val_acc", 0.9, 1),
            ("loss", 0.3, 2), ("acc", 0.9, 2), ("test_loss", 0.2, 2),
        ],
    ),
    "Keras 3": (KERAS_3, [("accuracy", 0.8, 1), ("loss", 0.6, 1)]),
    "Chainer": (
        CHAINER,
        [
            ("main/loss", 0.190916, 1), ("validation/main/loss", 0.0866891, 1),
            ("main/accuracy", 0.942533, 1), ("main/loss", 0.07, 2), ("main/accuracy", 0.97, 2),
        ],
    ),
    "Chainer's progress bar": (CHAINER_BAR, [("main/loss", 0.190916, 1), ("main/loss", 0.09, 2)]),
    "CNTK": (CNTK, [("loss", 0.304587, 1), ("metric", 8.91, 1), ("evaluation_metric", 1.21, 1)]),
    "PyTorch": (
        PYTORCH,
        [
            ("loss", 2.300039, 1), ("loss", 2.2, 2), ("loss", 2.0, 5),
            ("test_average_loss", 0.0456, 1), ("test_accuracy", 0.985, 1),
        ],
    ),
    "TensorFlow": (TENSORFLOW, [("training_accuracy", 0.93, 1), ("validation_accuracy", 0.95, 1)]),
    "azureml": (AZURE_ML, [("Accuracy", 0.97, 1)]),
    "Trainer": (TRAINER, [("loss", 0.4, 1), ("eval_f1", 0.9, 1)]),
    "fastai": (FASTAI, [("train_loss", 0.23, 0), ("accuracy", 0.91, 0)]),
    "ImageNet": (IMAGENET, [("loss", 6.9, 0), ("acc@1", 0.25, 0)]),
    "the last line": ("Test accuracy: 0.98", [("test_accuracy", 0.98, 1)]),
    "steps": ("INFO:tensorflow:loss = 2.5, step = 101 (0.5 sec)\n", [("loss", 2.5, 101)]),
    "counts": ("Accuracy: 9850 / 10000 (98%)\n", [("accuracy", 0.985, 1)]),
    "a list": ("loss=0.5, accuracy=0.75,\n", [("loss", 0.5, 1), ("accuracy", 0.75, 1)]),
    "empty lines after a title": ("epoch loss\n\x1b[J\n''\n1 0.5\n", [("loss", 0.5, 1)]),
    "an empty line after a name": (
        "Attempted to log scalar metric Loss:\n\x1b[0m\n0.5\n", [("Loss", 0.5, 1)],
    ),
    "nan": ("loss: nan\n", [("loss", "NaN", 1)]),
    "separators of thousands": ("Loss: 1,234.56\n", [("loss", 1234.56, 1)]),
    "decimal commas": (
        "loss: 0,25, acc: 98,5 %\nepoch loss\n1 0,5\n",
        [("loss", 0.25, 1), ("acc", 98.5, 1), ("loss", 0.5, 2)],
    ),
    "a fraction of an epoch": (
        "{'loss': 0.5, 'epoch': 1.25}\n" * 2, [("loss", 0.5, 1), ("loss", 0.5, 2)],
    ),
    "COCO": (
        COCO,
        [
            ("ap", 0.373, 1), ("ap75", 0.401, 1), ("ap_large", 0.512, 1), ("ar1", 0.311, 1),
            ("ar_medium", 0.601, 1),
        ],
    ),
    "YOLO": (
        YOLO,
        [
            ("p", 0.576, 1), ("r", 0.833, 1), ("map50", 0.791, 1), ("map50-95", 0.604, 1),
            ("mask_p", 0.545, 1), ("mask_r", 0.75, 1), ("mask_map50", 0.734, 1),
            ("mask_map50-95", 0.512, 1),
        ],
    ),
    "a range of overlaps": (
        "mAP@0.5: 0.62, mAP@0.5:0.95: 0.37\nmAP@[.5:.95] = 0.38\n",
        [("map@0.5", 0.62, 1), ("map50-95", 0.37, 1), ("map50-95", 0.38, 2)],
    ),
    "what is compared with": (
        "Target accuracy: 0.99\nSource accuracy: 0.91\nBaseline loss: 0.7\naccuracy: 0.93\n",
        [
            ("target_accuracy", 0.99, 1), ("source_accuracy", 0.91, 1), ("baseline_loss", 0.7, 1),
            ("accuracy", 0.93, 1),
        ],
    ),
    "two bars": (TWO_BARS, [("loss", 0.5, 1), ("loss", 0.3, 2)]),
}  # fmt: skip


@pytest.mark.feature(46)
@pytest.mark.parametrize("framework", PRINTED)
def test_metrics_are_read_from_the_output_of_frameworks(framework: str) -> None:
    text, expected = PRINTED[framework]
    assert read(text) == expected
    assert read(*text) == expected, "in pieces of one character"


def test_counting_continues_after_the_checkpoint() -> None:
    queue = LineQueue()
    steps = PrintedSteps({"loss": 5, "acc": 5})
    printed = PrintedMetrics(MetricLog(2, queue), steps=steps)
    printed.feed(b"loss: 0.5\nloss: 0.25\nepoch 4, acc: 0.5\nnll: 1.0\n")
    found = [json.loads(line) for line in queue.peek().splitlines()]
    assert [(line["name"], line["step"]) for line in found] == [
        ("loss", 6), ("loss", 7), ("acc", 4), ("nll", 1),
    ]  # fmt: skip


def test_streams_share_the_steps_and_have_their_own_lines() -> None:
    queue = LineQueue()
    log, steps = MetricLog(1, queue), PrintedSteps()
    out, err = (PrintedMetrics(log, source=name, steps=steps) for name in ("stdout", "stderr"))
    out.feed(b"loss: 0.")
    err.feed(b"loss: 0.75\n")
    out.feed(b"5\n")
    found = [json.loads(line) for line in queue.peek().splitlines()]
    assert [(line["value"], line["step"], line["source"]) for line in found] == [
        (0.75, 1, "stderr"), (0.5, 2, "stdout"),
    ]  # fmt: skip


def test_metrics_of_an_epoch_are_read_once_keras_printed_them() -> None:
    queue = LineQueue()
    printed = PrintedMetrics(MetricLog(1, queue))
    printed.feed(KERAS_2[: KERAS_2.index("Epoch 2")].encode())
    assert len(queue.peek().splitlines()) == 4


@pytest.mark.parametrize(
    "line",
    [
        "loss_scale: 65536", "lr: 0.1", "error: 3 files are missing", "batch: 12",
        "2026-11-23 10:00:00 score.py:12", "version 1.2.3", "loss: 3x", "loss weights 1:2",
        "accuracy of the network: good", "Namespace(loss='mse', epochs=3)", "epoch 3 of 5 begins",
        "Loss: 1,234", "loss: 1,2,3", "Accuracy: 9850 / 10,000",
        "Accuracy: 9850 / 100", "loss: 1" + "2" * 1900, "epoch loss\n\xb2  0.5",
        "epoch loss\n" + "1" * 1900 + " 0.5", "epoch loss\n1 2 3\n1 0.5", "epoch loss\n1 1,234",
        "epoch loss\n" + "other\n" * 60 + "1 0.5",
        "thresholds IoU=0.50:0.95", "loss: 0.5:0.9", "IoU=0.5 maxDets=100",
        "epoch loss a b c accuracy d\n7 iter, 0 of / 20 ok",
    ],
)  # fmt: skip
def test_line_without_a_metric_yields_none(line: str) -> None:
    assert read(f"{line}\n") == []


@pytest.mark.parametrize(
    "line", ["a", "a.", " \t", "test ", "1", "best best ", "\x1b[", "epoch ", "\b", "loss"]
)
def test_endless_line_is_read_at_once(line: str) -> None:
    assert read(line * (2_000_000 // len(line)) + "\nloss: 0.5\n")[-1] == ("loss", 0.5, 1)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "words",
    ["test ", "best test avg loss 0.5 dev ", "val_loss/a-1: 2/3/", "test a: 1 "],
)
def test_many_long_lines_are_searched_in_linear_time(
    monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    monkeypatch.setattr(printed_module, "BUDGET_S", float("inf"))
    line = (words * 2000)[:1990] + "\n"
    assert read("loss: 0.1\n" + line * 500 + "\nnll: 0.5\n")[-1] == ("nll", 0.5, 1)


def test_line_without_a_number_is_not_searched_for_values(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = LineQueue()
    printed = PrintedMetrics(MetricLog(1, queue))
    with monkeypatch.context() as searches:
        for name in ("_BAR", "_EPOCH_ALONE", "find_pairs"):
            searches.setattr(printed_module, name, None)
        printed.feed(b"epoch loss\nepoch of little loss\nthe loss falls\nstep loss\n" * 3)
    printed.feed(b"1 0.5\n")
    [found] = [json.loads(line) for line in queue.peek().splitlines()]
    assert (found["name"], found["value"], found["step"]) == ("loss", 0.5, 1)


@pytest.mark.parametrize("line", ["━━━━", "█", "fast it/s", "slow s/it"])
def test_line_of_a_bar_without_a_number_does_not_complete_it(line: str) -> None:
    bar = "1/4 [=>..] loss: 0.9\n", "4/4 [====] loss: 0.5\n"
    assert read(f"{bar[0]}loss {line}\n{bar[1]}") == [("loss", 0.5, 1)]
    assert read(f"{bar[0]}loss falls\n{bar[1]}") == [("loss", 0.9, 1), ("loss", 0.5, 2)]


def warned(printed: PrintedMetrics, log: MetricLog) -> list[str]:
    warnings: list[str] = []
    log.warn = warnings.append
    for _ in range(3):
        printed.feed(b"loss: 0.5\n")
    printed.finish()
    return warnings


def test_slow_search_is_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(printed_module, "BUDGET_S", 0.0)
    log = MetricLog(1, LineQueue())
    printed = PrintedMetrics(log)
    [warning] = warned(printed, log)
    assert "too long" in warning
    assert not printed.is_on


def test_error_of_the_search_switches_it_off_and_is_not_raised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = MetricLog(1, LineQueue())
    monkeypatch.setattr(log, "add", {}.__getitem__)
    printed = PrintedMetrics(log)
    [warning] = warned(printed, log)
    assert "TypeError" in warning
    assert not printed.is_on


TITLES = st.sampled_from(
    ["epoch main/loss", "Attempted to log scalar metric a:", "epoch loss", "Epoch 1/2", "loss"]
)
FRAGMENTS = st.sampled_from(
    [
        "\x1b[J", "'", '"', "\b", "\xb2", "\u0663", "1", "0.5", "1" * 1900, "nan", " ", "\t", "[",
        "%|", "loss: ", "acc 0.5 / ", ",5", "\x85", "\x1c", "/0", "epoch", "1e9999", "\r", "val_",
        "/step",
    ]
)  # fmt: skip
LINES = FRAGMENTS | st.lists(FRAGMENTS | st.text(), max_size=6).map("".join)


@pytest.mark.slow
@given(st.lists(st.tuples(TITLES, LINES, LINES)))
def test_search_fails_on_no_line(parts: list[tuple[str, ...]]) -> None:
    printed = PrintedMetrics(MetricLog(1, LineQueue()))
    for part in parts:
        printed.feed("\n".join((*part, "")).encode(errors="replace"))
    printed.finish()
    assert printed.is_on


LOSS = "print('epoch 1 loss: 0.5')\n"


@pytest.mark.slow
def test_metrics_are_read_without_a_pattern(task: Task) -> None:
    task.submit(LOSS, metrics={})
    assert task.run() == 0, task.output
    assert task.json("result.json")["metrics"] == {"loss": 0.5}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "metrics"),
    [
        (LOSS, {"patterns": {"other": "other=(.*)"}}),
        (LOSS + "import os; open(os.environ['RUNNER_METRICS_FILE'], 'w').close()", {}),
    ],
)
def test_no_metric_is_guessed_if_script_or_recipe_define_some(
    task: Task, script: str, metrics: dict[str, Any]
) -> None:
    task.submit(script, metrics=metrics)
    assert task.run() == 0, task.output
    assert task.json("result.json").get("metrics", {}) == {}


@pytest.mark.slow
def test_no_metric_is_guessed_once_a_package_writes_some(task: Task) -> None:
    package = (
        "import os\nopen(os.environ['RUNNER_METRICS_' + 'FILE'], 'w').write('{\"a\": 1}\\n')\n"
    )
    task.submit(
        package + LOSS + "open('m.h5', 'w').close()", metrics={}, retries=1, outputs=["m.h5"]
    )
    task.service.refuse_put = "mnist-1/output/m.h5"
    assert task.run() == 1
    task.service.refuse_put = ""
    assert task.run(again_in=0) == 0, task.output
    assert task.json("result.json")["metrics"] == {"a": 1.0}


@pytest.mark.slow
def test_repeated_export_has_the_printed_metrics(task: Task) -> None:
    task.submit(LOSS + "open('m.h5', 'w').close()", metrics={}, retries=1, outputs=["m.h5"])
    task.service.refuse_put = "mnist-1/output/m.h5"
    assert task.run() == 1
    task.service.refuse_put = ""
    mark = json.loads(Path(task.folder, "task-0", "wd", "finished.json").read_text())
    assert mark["printed"] is True
    assert task.run(again_in=0) == 0, task.output
    assert task.json("result.json")["metrics"] == {"loss": 0.5}


@pytest.mark.parametrize("text", ["regret: 0.5", "epoch 1 Regret=0.5", "step 1 regret 0.5 lr: 2"])
def test_metric_that_the_sweep_names_is_read(text: str) -> None:
    assert read(text) == []
    assert read(text, wanted=("regret",)) == [("regret", 0.5, 1)]
    assert read(text, wanted=("Regret", "loss")) == [("Regret", 0.5, 1)]
    assert read("regrets: 0.5", wanted=("regret",)) == []
    assert read("error: 0.5", wanted=("error",)) == [("error", 0.5, 1)]
