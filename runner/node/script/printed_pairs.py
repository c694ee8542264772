"""Find the metrics in one printed line: `Test accuracy: 0.98` is `("test_accuracy", 0.98)`.

Names and values are guesses from the forms that training programs print. `find_pairs` reads names
with a value; `find_round` the lines of XGBoost, LightGBM and CatBoost, which name their values
otherwise.
"""

from __future__ import annotations

import functools
import re
from collections import deque
from collections.abc import Iterator, Mapping

from runner.protocol.metrics import METRIC_WORDS, is_metric_name

_NEEDS_QUALIFIER = frozenset({"error", "err"})  # `test error: 3` is a metric, `error: 3` is not
_PHASE = r"test(?:ing)?|val(?:id(?:ation)?)?|eval(?:uation)?|dev"
# A phase for the pairs that follow; not as a part of their names.
_IN_PHASE = re.compile(rf"(?<![\w/-])({_PHASE})(?![\w/-])", re.IGNORECASE)
_HAS_PHASE = re.compile(rf"(?:^|[_/ -])(?:{_PHASE}|train(?:ing)?)(?:[_/ -]|$)")
# Words of a name before its last one: `mean squared error`, `Minibatch loss`, `lm loss value`.
_NAME_WORDS = METRIC_WORDS | {
    *("test", "testing", "val", "valid", "validation", "eval", "evaluation", "dev", "train"),
    *("training", "set", "minibatch", "batch", "epoch", "episode", "step", "running", "current"),
    *("avg", "average", "mean", "median", "total", "final", "best", "last", "overall", "adj"),
    *("weighted", "balanced", "macro", "micro", "top", "top-1", "top-5", "roc", "pr", "cv", "oob"),
    *("squared", "absolute", "percentage", "root", "log", "cross", "entropy", "binary", "ema"),
    *("classification", "regression", "reconstruction", "policy", "value", "actor", "critic"),
    *("generator", "discriminator", "gen", "disc", "d", "g", "lm", "mlm", "pseudo", "masked"),
    *("character", "word", "token", "class", "object", "box"),
    # What is wanted or compared with is not the metric itself: `Target accuracy: 0.99`.
    *("target", "source", "desired", "required", "baseline"),
}
_MAX_NAME_WORDS = 4  # before the last one
_NAME_WORDS_CHARS = 80
_WORD_BEFORE = re.compile(r"([A-Za-z][A-Za-z0-9-]{0,30})[ \t]{1,3}$")
_LETTER_BEFORE = re.compile(r"[A-Za-z][ \t]{0,3}$")
_LAST_WORDS = frozenset({"value", "mean", "average"})  # after the word of a metric
_AFTER_LOSS = frozenset({  # words after `loss_` that make it no loss
    "scale", "scaler", "weight", "weights", "fn", "func", "function", "type", "name", "ratio",
    "factor", "coef", "coeff", "alpha", "beta", "gamma", "lambda", "reduction", "num", "count",
    "threshold", "every", "interval", "chunk", "chunks", "margin", "mode", "kind", "freq",
})  # fmt: skip
_BEFORE_RETURN = frozenset({"ep", "episode", "episodic", "eval", "mean", "avg", "average"})
_AFTER_ACCURACY = frozenset({"class", "seg", "pose", "cls"})
_PARTS = re.compile(r"[A-Za-z0-9]+")
_SPECIAL_NAME = re.compile(
    r"(?:.*[_/.-])?(?:mAP|AP|AR)(?:@0?\.\d\d?|@?\d{0,3}(?:[_-]\d{1,3})?)|[pPrR]@\d{1,4}"
)
_SHORT_FLOATS = frozenset({8.0, 16.0, 32.0, 64.0})  # `precision: 16` is a setting

# `1,234.5` has separators of thousands; a comma is a decimal one in `0,312`, `98,25` and `98,5 %`.
_NUMBER = (
    r"[-+]?(?:\d{1,3}(?:,\d{3}){1,5}\.\d{1,40}|0,\d{1,40}|\d{1,40},(?:\d\d|\d{4,40}|\d(?=\s?%))|"
    r"\d{1,40}(?:\.\d{0,40})?|\.\d{1,40})(?:[eE][-+]?\d{1,4})?|nan|NaN|[-+]?(?:inf|Infinity)"
)
VALUE = re.compile(_NUMBER)
_WRAPPED = r"(?:(?:np\.|jnp\.|torch\.)?(?:tensor|Tensor|Array|array|float\d{0,2})\()?"
_NAME = r"(?<![\w./@-])([A-Za-z][\w./@-]{0,80})"
_END = r"(?!,\d|:\d|\s?/\s?\d|[\w/.]{0,80}[A-Za-z0-9_])"
# Name and value are separated by `:`, `=` or `is`, or by spaces if the value has a decimal point.
_PAIR = re.compile(
    rf"{_NAME}(?:\s?\(([\w -]{{1,20}})\))?"
    rf"(?:\s{{0,40}}(?:[:=]|\bis:?)\s{{0,40}}{_WRAPPED}|(\s{{1,40}})(?=[-+]?\d{{0,40}}\.\d))"
    # `9850 / 10,000` has no value of its own.
    rf"({_NUMBER})(?:\s?/\s?(\d{{1,12}}))?{_END}"
)
# `Accuracy of the network on the 10000 test images: 55 %`
_PAIR_OF = re.compile(
    rf"{_NAME}\s(?:of|on|for|over)\s([^:=|,;]{{1,60}}?)\s?(?:[:=]|\bis:?)\s{{0,8}}({_NUMBER}){_END}"
)
_OF = re.compile(r"\s(?:of|on|for|over)\s")
_GENERAL_WORDS = frozenset({
    "the", "a", "an", "this", "all", "network", "net", "model", "classifier", "on", "of", "for",
    "over", "in", "at", "image", "images", "set", "data", "dataset", "sample", "samples",
    "example", "examples", "prediction", "predictions", "class", "fold", "folds", "epoch", "train",
    "training", "batch", "is", "current", "whole", "entire", "held-out", "unseen",
})  # fmt: skip
# ` Average Precision  (AP) @[ IoU=0.50:0.95 | area=   all | maxDets=100 ] = 0.373` of COCO's tools
_COCO = re.compile(
    r"\((AP|AR)\) @\[ IoU=0\.(\d\d)(:0\.95)?\s{0,9}\| area=\s{0,9}(\w{1,9}) \| "
    r"maxDets=\s{0,9}(\d{1,5}) \] = (\d\.\d{1,9})"
)
_ALL_OVERLAPS = re.compile(r"@\[?\s?(?:IoU=)?0?\.50?[:-]0?\.95(?:\s?\])?", re.IGNORECASE)
_MAX_OTHER_WORDS = 1  # of a class: `Accuracy of plane: 61 %`

_ROUND = re.compile(r"\s{0,3}\[(\d{1,9})\]\s{1,4}(?=[A-Za-z])")
_ROUND_PAIR = re.compile(
    rf"([A-Za-z][\w.@-]{{0,80}}?(?:'s [\w.@-]{{1,80}}|-[\w.@-]{{1,80}})):\s?({_NUMBER})"
)
_ITERATION = re.compile(
    rf"\s{{0,9}}(\d{{1,9}}):\s{{1,4}}learn: ({_NUMBER})(?:\s+test: ({_NUMBER}))?"
)


def find_pairs(line: str, wanted: Mapping[str, str]) -> Iterator[tuple[str, float]]:
    """Yield names and values of the metrics in a line, without quotes and control sequences.

    Args:
        line: the line.
        wanted: lower-case names that are metrics in addition to the usual ones.
    """
    if "IoU=" in line and "maxDets=" in line:
        yield from _find_coco(line)
        return
    if ".95" in line:
        line = _ALL_OVERLAPS.sub("50-95", line)  # `mAP@0.5:0.95: 0.37` is `map50-95`
    phases = deque(_IN_PHASE.finditer(line))
    phase = ""  # the last phase before the current pair
    for found in _PAIR.finditer(line):
        token, detail, spaces, number, total = found.groups()
        token = token.rstrip(".-")
        start = found.start()
        name = _name_at(line, start, token, wanted, is_loose=spaces is not None)
        if name is None:
            continue
        while phases and phases[0].end() <= start:
            phase = phases.popleft()[1].lower()
        value = to_number(number)
        if detail and not is_metric_word(detail) and len(detail.split()) == 1:
            name = f"{name}_{detail.lower()}"  # `F1 (macro): 0.98`
        if phase and not _HAS_PHASE.search(name):
            name = f"{phase}_{name}"
        if token.lower() == "precision" and value in _SHORT_FLOATS and "." not in number:
            continue
        if total:  # `Accuracy: 9850/10000`
            if not int(total) >= value >= 0 < int(total):
                continue
            value /= int(total)
        yield name, value
    if _OF.search(line):
        yield from _find_pairs_of(line, wanted)


def _find_coco(line: str) -> Iterator[tuple[str, float]]:
    """Yield `ap`, `ap50`, `ap_small`, `ar100` and so on; the tools print -1 where nothing is."""
    if (found := _COCO.search(line)) is None:
        return
    kind, overlap, is_range, area, most, number = found.groups()
    if area != "all":
        detail = f"_{area}"
    elif not is_range:
        detail = overlap
    else:
        detail = "" if kind == "AP" else most
    yield f"{kind.lower()}{detail.lower()}", to_number(number)


def _name_at(
    line: str, start: int, token: str, wanted: Mapping[str, str], *, is_loose: bool
) -> str | None:
    """Return the name that ends with the token at `start`, or None if it is no metric.

    With `is_loose`, only spaces are between name and value: a name inside of a sentence is none.
    """
    is_last_word = token.lower() in _LAST_WORDS
    if not is_last_word and not is_metric_token(token, wanted):
        return None
    words: list[str] = []
    at = start
    while len(words) < _MAX_NAME_WORDS:
        before = _WORD_BEFORE.search(line, max(at - _NAME_WORDS_CHARS, 0), at)
        if before is None or before[1].lower() not in _NAME_WORDS:
            break
        words.insert(0, before[1])
        at = before.start()
    if is_last_word and not any(is_metric_word(word) for word in words):
        return None
    if not words and token.lower() in _NEEDS_QUALIFIER - wanted.keys():
        return None
    if is_loose and _LETTER_BEFORE.search(line, max(at - 4, 0), at):
        return None
    return "_".join((*words, token)).lower()


def _find_pairs_of(line: str, wanted: Mapping[str, str]) -> Iterator[tuple[str, float]]:
    for found in _PAIR_OF.finditer(line):
        token, middle, number = found.groups()
        name = _name_at(line, found.start(), token, wanted, is_loose=False)
        if name is None:
            continue
        words = [word.strip("()").lower() for word in middle.split()]
        phase = next((word for word in words if re.fullmatch(_PHASE, word)), "")
        others = [w for w in words if w not in _GENERAL_WORDS and w != phase and not w.isdigit()]
        if len(others) > _MAX_OTHER_WORDS or not all(w.isidentifier() for w in others):
            continue
        name = "_".join((name, *others))
        yield (f"{phase}_{name}" if phase and not _HAS_PHASE.search(name) else name,
               to_number(number))  # fmt: skip


def find_round(line: str) -> tuple[int, list[tuple[str, float]]] | None:
    """Return the number and the metrics of a line of boosted trees, or None for another line.

    `[3] valid_0's l2: 0.19` of LightGBM is `valid_0_l2`, `[3] eval-logloss:0.2` of XGBoost
    `eval-logloss`, and `3: learn: 0.5 test: 0.6` of CatBoost are `learn` and `test`.
    """
    if "learn: " in line and (found := _ITERATION.match(line)):
        values = zip(("learn", "test"), found.groups()[1:], strict=True)
        return int(found[1]), [(name, to_number(text)) for name, text in values if text]
    if (found := _ROUND.match(line)) is None:
        return None
    pairs = [
        (name.replace("'s ", "_").replace(" ", "_").lower(), to_number(text))
        for name, text in _ROUND_PAIR.findall(line, found.end())
    ]
    return (int(found[1]), pairs) if pairs else None


def to_number(text: str) -> float:
    """Return the value of a number that `VALUE` matches."""
    if "," in text:
        text = text.replace(",", "") if "." in text else text.replace(",", ".")
    return float(text)


def is_metric_token(token: str, wanted: Mapping[str, str]) -> bool:
    """Return True for the name of a metric, or one of the lower-case `wanted` names."""
    return token.lower() in wanted or is_metric_word(token)


@functools.lru_cache(maxsize=2000)  # scripts print the same words many times
def is_metric_word(token: str) -> bool:
    """Return True for the name of a metric in text, where fewer words are names than in files."""
    if is_metric_name(token, METRIC_WORDS) or _SPECIAL_NAME.fullmatch(token):
        return True
    parts = [part.lower() for part in _PARTS.findall(token)]
    last = parts[-1] if parts else ""
    if last.endswith("iou"):
        return True
    if last in ("return", "returns"):
        return not _BEFORE_RETURN.isdisjoint(parts)
    if "loss" in parts[:-1]:  # `loss_cls`, `Loss_D`
        return parts.index("loss") <= 1 and last not in _AFTER_LOSS and not last.isdigit()
    return len(parts) == 2 and parts[0] in ("acc", "accuracy") and last in _AFTER_ACCURACY
