"""Whatever is written in a field of train.yaml or of a submit file, the answer is in our words."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from pydantic import BaseModel

from runner.core.recipe.file import RecipeFile
from runner.core.recipe.submit_file import SubmitFile
from runner.core.settings import SettingsFile
from runner.core.yaml_files import check_document, read_document
from runner.protocol.errors import RunnerError

# Messages of pydantic itself, ignoring the case of the first letter.
RAW = re.compile(
    r"(input|string|list|dictionary|tuple|set|value|keys?|data|mapping) should|field required"
    r"|value error|assertion failed|extra inputs|unable to (parse|apply|interpret)"
    r"|not permitted|valid (string|integer|number|boolean|dictionary|list|datetime)"
    r"|validation error|characters?\b.*after|\[key\]|it is not the value is invalid",
    re.IGNORECASE,
)
VALUES: list[Any] = [
    *(7, -(10**9), 10**13, 3.5, float("nan"), float("inf"), True, None),
    *("", " ", "some text!", "/abs/../x", "x" * 300, "9999d", "0s", "1900-01-01", "200TB"),
    *([], ["a"], [7], [""], [None], [["a"]], {}, {"a": 7}, {"bad key!": {"a": 1}}, {7: "a"}),
]
Place = tuple[str | int, ...]


def places(schema: dict[str, Any], defs: dict[str, Any], place: Place = ()) -> Iterator[Place]:
    """Yield every path in a document of this schema; `some_name` replaces names of users."""
    if "$ref" in schema:
        yield from places(defs[schema["$ref"].rpartition("/")[2]], defs, place)
        return
    yield place
    for key, below in schema.get("properties", {}).items():
        yield from places(below, defs, (*place, key))
    named = [*schema.get("patternProperties", {}).values(), schema.get("additionalProperties")]
    for below in named:
        if isinstance(below, dict):
            yield from places(cast("dict[str, Any]", below), defs, (*place, "some_name"))
    if "items" in schema:
        yield from places(schema["items"], defs, (*place, 0))
    for below in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        yield from places(below, defs, place)


def every_field() -> Iterator[Any]:
    for model in (RecipeFile, SubmitFile, SettingsFile):
        schema = model.model_json_schema()
        for place in dict.fromkeys(places(schema, schema.get("$defs", {}))):
            if place:
                yield pytest.param(model, place, id=f"{model.__name__}-{'.'.join(map(str, place))}")


def with_value(place: Place, value: Any) -> str:
    """Return a document with this value at the place, one key per line."""
    keys = ["-" if isinstance(part, int) else f"{part}:" for part in place]
    lines = [f"{'  ' * depth}{key}" for depth, key in enumerate(keys)]
    return "\n".join(lines) + f" {in_flow_style(value)}\n"


def in_flow_style(value: Any) -> str:
    """Return the value as YAML. ruamel needs as long to write 4,500 files as to read them."""
    if isinstance(value, dict):
        items = cast("dict[Any, Any]", value).items()
        return f"{{{', '.join(f'{in_flow_style(k)}: {in_flow_style(v)}' for k, v in items)}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(in_flow_style, cast('list[Any]', value)))}]"
    if isinstance(value, float) and not math.isfinite(value):
        return ".nan" if math.isnan(value) else ".inf"
    return json.dumps(value)


def refused(folder: Path, model: type[BaseModel], text: str) -> RunnerError | None:
    path = folder / "file.yaml"
    path.write_text(text, encoding="utf-8")
    try:
        check_document(read_document(path, code="R-X"), model, code="R-X")
    except RunnerError as err:
        return err
    return None


def error_of(path: Path, text: str, model: type[BaseModel] = RecipeFile) -> RunnerError:
    """Return the error for a file with this text."""
    path.write_text(text, encoding="utf-8")
    with pytest.raises(RunnerError) as caught:
        check_document(read_document(path, code="R-X"), model, code="R-X")
    return caught.value


@pytest.mark.parametrize(("model", "place"), list(every_field()))
def test_field_error_has_file_and_line(
    tmp_path: Path, model: type[BaseModel], place: Place
) -> None:
    found = [refused(tmp_path, model, with_value(place, value)) for value in VALUES]
    errors = [err for err in found if err is not None]
    assert errors, "no value at all is refused"
    for err in errors:
        assert not RAW.search(f"{err.what} {err.why} {err.fix}"), err
        assert re.search(rf"{re.escape(str(tmp_path))}/file\.yaml:\d+: .+: ", err.what), err
        assert err.code == "R-X-FIELD"
        assert err.fix
        assert "correct line" not in err.fix, "what to write instead, and not only where"
        assert len(err.what) < 500


@pytest.mark.parametrize(
    ("text", "what", "why", "fix"),
    [
        ("priority: 1001", "priority: got 1001", "the maximum is 1000", "use 1000 or less"),
        ("timeout: 30d", "timeout: it is more than 7d", "allowed: 1s to 7d", "write 7d or less"),
        (
            "name: cats!",
            "name: 'cats!' is not a name",
            "it has up to 40 letters,",
            "write it like cats-v2",
        ),
        (
            "env: {1x: a}",
            "env.1x: '1x' is not the name of a variable",
            "begin with a digit",
            "OMP_NUM_",
        ),
        ("env: {A: 1}", "env.A: expected text, got 1", "reads it as a whole number", "quotes"),
        ("env: {A: on}\nretries: yes", "retries: expected a whole number", "as text", "like 3"),
        ("command: []", "command: it is empty", "the minimum length is 1", "add a value"),
        ("env:", "env: expected `key: value` lines, got nothing", "the key has no value", "a line"),
        ("checkpoints: no", "YAML 1.2 reads no as text", "", "write false"),
        ("checkpoints: Off", "YAML 1.2 reads Off as text", "", "write false"),
        ("checkpoints: on", "YAML 1.2 reads on as text", "", "write true"),
        ("params: {a: {type: bool, default: no}}", "'no' is not of type bool", "", "write true or"),
        (
            "params: {a: {type: int, default: 1, max: 0}}",
            "1 is above max 0",
            "",
            "use a smaller value, or",
        ),
        ("inputs: {a: 'http://x'}", "a URL must begin with https://", "", "use ./folder, https://"),
        (
            "model: Cats",
            "model: 'Cats' is not the name of a model",
            "lower-case letters",
            "cats-v2",
        ),
        ("metrics: {goal: maxx}", "metrics.goal: got 'maxx'", "allowed: 'max' or", "mean 'max'"),
        ("params: {a: [1]}", "params.a: [1] cannot be the value of a parameter", "", "{type: int}"),
        ("params:\n  a:", ":2: params.a: the parameter has no value", "", "{type: int}"),
    ],
)
def test_field_error_has_what_why_and_fix(
    tmp_path: Path, text: str, what: str, why: str, fix: str
) -> None:
    err = error_of(tmp_path / "train.yaml", text)
    assert (what in err.what, why in err.why, fix in err.fix) == (True, True, True), err


def test_value_of_several_types_is_one_problem(tmp_path: Path) -> None:
    content = {"tasks": {"a": {"command": "x", "params": {"n": [1], "m": [2]}}}}
    err = refused(tmp_path, SubmitFile, in_flow_style(content))
    assert err is not None
    assert "tasks.a.params.n: expected true or false, a number or text, got [1]" in err.what
    assert err.why == "YAML reads it as a list; the file has 1 more problem"


@pytest.mark.parametrize(
    ("written", "shown", "kind"),
    [
        ("2026-11-21", "2026-11-21", "a date or time"),
        ("2026-11-21 06:00:00", "2026-11-21T06:00:00", "a date or time"),
        ("!!binary aGVsbG8=", "b'hello'", "a value with a tag, such as !!binary"),
    ],
)
def test_value_is_quoted_as_written(tmp_path: Path, written: str, shown: str, kind: str) -> None:
    text = f"name: {written}\ntasks: {{a: {{command: x}}}}\n"
    err = error_of(tmp_path / "f.yaml", text, SubmitFile)
    assert err.what.endswith(f"f.yaml:1: name: expected text, got {shown}")
    assert err.why == f"YAML reads it as {kind}"


@pytest.mark.parametrize("value", [123456789, ["hunter2-hunter2"], {"a": "hunter2-hunter2"}])
def test_value_in_place_of_a_secret_name_is_not_quoted(tmp_path: Path, value: object) -> None:
    err = refused(tmp_path, RecipeFile, in_flow_style({"secrets": {"TOKEN": {"env": value}}}))
    assert err is not None
    assert "hunter2" not in f"{err}"
    assert "123456789" not in f"{err}"


def test_too_deeply_nested_file_is_reported(tmp_path: Path) -> None:
    depth = 500  # the parser recurses three times per level, and a thousand levels take seconds
    err = error_of(tmp_path / "deep.yaml", f"tasks: {'[' * depth}{']' * depth}\n", SubmitFile)
    assert "deep.yaml:1: nested too deeply" in err.what


@pytest.mark.parametrize(
    ("text", "line", "problem", "fix"),
    [
        ("name: a\n" + "\n".join(" " * n + "a:" for n in range(1000)), 52, "too deeply", "fewer"),
        ("# cats\n\n- a\n- b", 3, "lines at the top, got a list", "begin the file with `key:`"),
        ("\ncats\n", 2, "lines at the top, got text", "write `key: value`"),
        ("name:a\nretries:1", 1, "lines at the top, got text", "a space after the colon"),
        ("name: a\nwhy: b: c", 2, "mapping values are not allowed", 'as: why: "b: c"'),
        ("name: a\n  - why: b: c", 2, "mapping values are not allowed", "quote text"),
        ("env:\n\tA: b", 2, "cannot start any token", "indent with spaces"),
        ("name: a\nname: b", 2, "duplicate key", "remove one"),
        ("a: [1, 2", 1, "expected ','", "close the bracket"),
        ("name: 'a", 1, "unexpected end of stream", "close the quote"),
        ("name: a\nwhy:b\n", 3, "could not find expected ':'", "a space after the colon"),
        ("name: @a", 1, "cannot start any token", 'write line 1 as: name: "@a"'),
        ("name: [@a", 1, "cannot start any token", "in single quotes"),
        ("name: *a", 1, "undefined alias", 'write line 1 as: name: "*a"'),
        ('name: "C:\\data"', 1, "unknown escape", "write line 1 as: name: 'C:\\data'"),
        ("name: a\n---\nname: b", 2, "another document", "`---`"),
        ("name: a\nwhy: b\x07", 2, "special characters", "remove the control character"),
    ],
)
def test_syntax_error_has_line_and_fix(
    tmp_path: Path, text: str, line: int, problem: str, fix: str
) -> None:
    path = tmp_path / "train.yaml"
    err = error_of(path, text)
    assert err.what.startswith(f"{path}:{line}: "), err
    assert problem in err.what
    assert fix in err.fix


def test_file_in_another_encoding_is_reported_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "train.yaml"
    path.write_bytes(b"name: a\ndescription: caf\xe9\n")
    with pytest.raises(RunnerError, match=r"train\.yaml:2: not UTF-8"):
        read_document(path, code="R-X")


def test_error_of_a_merged_key_has_the_line_of_its_mapping(tmp_path: Path) -> None:
    path = tmp_path / "tasks.yaml"
    text = (
        "tasks:\n"
        "  a: {recipe: mnist, params: &base {epochs: [1]}}\n"
        "  b:\n"
        "    recipe: mnist\n"
        "    params: {<<: *base}\n"
    )
    err = error_of(path, text, SubmitFile)
    assert "tasks.yaml:2: tasks.a.params.epochs: " in err.what
    assert "the file has 1 more problem" in err.why
    document = read_document(path, code="R-X")
    assert document.line(("tasks", "b", "params", "epochs")) == 5


@pytest.mark.parametrize("value", ["!!float ''", "!!int ''", "!!bool x", "!!set x", "!!omap x"])
def test_value_that_does_not_match_its_tag_is_reported(tmp_path: Path, value: str) -> None:
    err = error_of(tmp_path / "train.yaml", f"name: {value}\n")
    assert "does not match its tag" in f"{err.what} {err.why}"
    assert err.code == "R-X-SYNTAX"
    assert "remove the tag" in err.fix


def _repeated(first: str, line: str) -> str:
    """Return a file in which each of 40 lines repeats the line above it."""
    return first + "".join(line.format(i=i, above=i - 1) for i in range(1, 40))


HOSTILE = {
    "lists of aliases": _repeated("a0: &a0 [x, x]\n", "a{i}: &a{i} [*a{above}, *a{above}]\n"),
    "mappings of aliases": _repeated(
        "a0: &a0 {x: 1}\n", "a{i}: &a{i} {{l: *a{above}, r: *a{above}}}\n"
    ),
    "merged mappings": _repeated(
        "a0: &a0 {x: 1}\n", "a{i}: &a{i}\n  <<: [*a{above}, *a{above}]\n  k{i}: 1\n"
    ),
    "an alias often": "a: &a [1, 2, 3, 4]\nb: [" + "*a," * 5000 + "]\n",
    "a list in itself": "a: &a [1, *a]\n",
    "a mapping in itself": "a: &a\n  b:\n    c: *a\n",
    "a long list": "a: [" + "1," * 30_000 + "]\n",
    "a long block": "a:\n" + "- 1\n" * 30_000,
    "many keys": "".join(f"k{i}: 1\n" for i in range(11_000)),
    "many keys in braces": "a: {" + "".join(f"k{i}: 1," for i in range(11_000)) + "}\n",
    "many documents": "---\n" * 21_000,
    "open brackets": "a: " + "[" * 10_000,
    "open braces": "a: " + "{a: " * 10_000,
    "dashes": "- " * 10_000 + "x\n",
    "deep keys": "".join(" " * i + "a:\n" for i in range(300)),
    "a long number": "a: " + "9" * 9000 + "\n",
    "a long time": "a: !!int 1" + ":00" * 1000 + "\n",
}


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_file_that_would_grow_in_memory_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "train.yaml"
    path.write_text(text)
    with pytest.raises(RunnerError) as caught:
        read_document(path, code="R-RECIPE")
    assert caught.value.code == "R-RECIPE-SYNTAX"
    assert str(path) in caught.value.what


def test_aliases_of_ordinary_files_are_read(tmp_path: Path) -> None:
    path = tmp_path / "train.yaml"
    path.write_text("a: &a [1, {b: c}]\nd: {e: *a, f: *a}\ng: &g {h: i}\nj: {<<: *g, k: 1}\n")
    data = read_document(path, code="R-RECIPE").data
    assert data["d"]["f"] == [1, {"b": "c"}]
    assert data["j"] == {"k": 1, "h": "i"}


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ("python: 3.10", 'python: "3.10"'),
        ("python: 3.1", 'python: "3.1"'),
        ("env: {A: 1.10}", 'A: "1.10"'),
        ("env: {A: 010}", 'A: "010"'),
        ("env: {A: true}", 'A: "true"'),
        ("env: {A: 2026-01-01}", 'A: "2026-01-01"'),
        ("toolkit: 2.10", 'toolkit: "2.10"'),
        ("model: 1.0", 'model: "1.0"'),
        ("command: {lr}", 'command: "{lr}"'),
        ("params: {1: 2}", '"1"'),
        ("params: {v: {type: str, default: 1.10}}", '"1.10"'),
        ("timeout: 12:30:00", "write 12h30m"),
        ("timeout: 1:30", "write 1h30m, or 1m30s"),
        ("outputs: [a.txt, *.pt]", 'write line 1 as: outputs: [a.txt, "*.pt"]'),
        ("entry: *.py", 'write line 1 as: entry: "*.py"'),
        ("name: a\ndescription: see: here", 'write line 2 as: description: "see: here"'),
        ("description: %d steps", 'write line 1 as: description: "%d steps"'),
        ("description: 'it's fast'", 'write line 1 as: description: "it\'s fast"'),
        ("description: - fast", 'write line 1 as: description: "- fast"'),
        ("after: [@last]", 'write line 1 as: after: ["@last"]'),
        ("command: python t.py: x", 'write line 1 as: command: "python t.py: x"'),
        ('metrics: {patterns: {loss: "loss=(\\d+)"}}',
         "write line 1 as: metrics: {patterns: {loss: 'loss=(\\d+)'}}"),
        ("params:\n\tlr: 1", "indent with spaces, because YAML does not allow tabs"),
    ],
)  # fmt: skip
def test_fix_of_a_value_that_yaml_reads_otherwise_is_text_that_works(
    tmp_path: Path, text: str, fix: str
) -> None:
    err = refused(tmp_path, RecipeFile, text)
    assert err is not None
    assert fix in err.fix
    if line := re.fullmatch(r"write line (\d+) as: (.*)", err.fix):
        lines = text.split("\n")
        lines[int(line[1]) - 1] = line[2]
        assert refused(tmp_path, RecipeFile, "\n".join(lines)) is None


@pytest.mark.parametrize(
    ("text", "key", "fix"),
    [
        ("python: 3.10", "python", 'quote it: python: "3.10"'),
        ('python: "python3.10"', "python", 'write it like python: "3.10"'),
        ('python: ">=3.9,<3.13"', "python", 'write it like python: "3.9"'),
        ("env: {A: }", "A", 'write text, or an empty one: A: ""'),
        ("params: {day: 2026-01-01}", "day", "put it in quotes: '2026-01-01'"),
        ("command:\tpython train.py", "command", "command: python train.py"),
    ],
)
def test_fix_of_a_trap_is_the_text_that_works(
    tmp_path: Path, text: str, key: str, fix: str
) -> None:
    err = error_of(tmp_path / "train.yaml", text)
    assert err.fix.endswith(fix)
    if key == "day":
        return  # its value only
    written = err.fix[err.fix.index(f"{key}:") :]
    path = tmp_path / "fixed.yaml"
    path.write_text(f"env: {{{written}}}\n" if key == "A" else f"{written}\n")
    check_document(read_document(path, code="R-X"), RecipeFile, code="R-X")


@pytest.mark.parametrize("version", ["2.7", "3", "4.0"])
def test_version_that_quotes_do_not_help_is_refused_as_such(tmp_path: Path, version: str) -> None:
    err = error_of(tmp_path / "train.yaml", f"python: {version}")
    assert err.what.endswith(f"{version!r} is not a Python version")


def test_value_with_a_tag_is_named_by_its_tag(tmp_path: Path) -> None:
    err = error_of(tmp_path / "train.yaml", "command: !mine x")
    assert "a value with the tag !mine" in err.what
