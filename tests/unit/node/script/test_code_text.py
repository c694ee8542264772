"""What the text of a script says, whatever data is in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.node.script.code_text import CodeText

COMMAND = ("python", "train.py", "--output_dir", "res")


@pytest.mark.slow
@pytest.mark.timeout(60)  # a search of quadratic time takes hours
@pytest.mark.parametrize(
    "text",
    [
        "x = '" + "a" * 500_000 + "'\n",
        "{" + "".join(f"a{number}: {number}, " for number in range(40_000)) + "}\n",
        "\n" * 500_000,
        "a=" * 200_000,
        "'/" * 200_000,
        "os.makedirs(a, exist_ok=True) " * 15_000,
    ],
    ids=["one word", "one line of pairs", "empty lines", "assignments", "quotes", "folders"],
)
def test_large_data_in_code_does_not_delay_the_script(tmp_path: Path, text: str) -> None:
    (tmp_path / "train.py").write_text(text)
    said = CodeText(tmp_path, COMMAND)
    assert list(said.expected_folders(COMMAND)) == ["outputs", "logs", "res"]
    assert list(said.named_outputs()) == []
    assert len(list(said.absolute_paths())) <= 1


@pytest.mark.parametrize(
    ("text", "bare"),
    [
        ("for epoch in range(5):\n    loss.backward()\n", True),
        ("for epoch in range(5): save(os.environ['RUNNER_CHECKPOINT_DIR'])", False),
        ("from runner.hooks.torch import Checkpoint\nfor epoch in x: pass", False),
        ("import keras\nmodel.fit(x, y, epochs=5)", False),
        ("from transformers import Trainer, TrainingArguments\nepochs = 3", False),
        ("import lightning as L\nL.Trainer(max_epochs=3).fit(model)", False),
        ("import tensorflow as tf\ntf.train.CheckpointManager(c, d, 3)\nepochs = 3", False),
        ("print('hello')", False),
    ],
)
def test_training_without_checkpoints_is_recognized(tmp_path: Path, text: str, bare: bool) -> None:
    (tmp_path / "train.py").write_text(text)
    assert CodeText(tmp_path, COMMAND).trains_without_checkpoints is bare


def test_checkpoint_folder_in_an_argument_is_recognized(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("for epoch in range(5): pass")
    assert CodeText(
        tmp_path, ("python", "t.py", "--to", "$RUNNER_CHECKPOINT_DIR")
    ).saves_checkpoints
    assert not CodeText(tmp_path, COMMAND).saves_checkpoints


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("os.makedirs('runs/' + date)", ["outputs", "logs", "res"]),
        ('os.mkdir("./outputs/")', ["logs", "res"]),
        ("os.mkdir('res')", ["outputs", "logs"]),
        ("os.mkdir('run' + date)", []),
        ("os.mkdir(folder)", []),
        ("Path('runs').mkdir()", []),
    ],
)
def test_folder_that_the_code_makes_itself_is_not_created(
    tmp_path: Path, text: str, expected: list[str]
) -> None:
    (tmp_path / "train.py").write_text(text)
    assert list(CodeText(tmp_path, COMMAND).expected_folders(COMMAND)) == expected
