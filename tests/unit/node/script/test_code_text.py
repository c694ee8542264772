"""What the text of a script says, whatever data is in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.node.script.code_text import CodeText

COMMAND = ("python", "train.py", "--output_dir", "res")


@pytest.mark.timeout(60)  # a search in the square of the length takes hours
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
def test_large_data_in_code_does_not_hold_up_the_script(tmp_path: Path, text: str) -> None:
    (tmp_path / "train.py").write_text(text)
    said = CodeText(tmp_path, COMMAND)
    assert list(said.expected_folders(COMMAND)) == ["outputs", "logs", "res"]
    assert list(said.named_outputs()) == []
    assert len(list(said.absolute_paths())) <= 1
