"""The OData subset of list operations: `$filter` and `$select`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Predicate = Callable[[Mapping[str, Any]], bool]


class FilterError(ValueError):
    """The text of `$filter` or `$select` is refused; answered 400 InvalidQueryParameterValue."""


@dataclass(frozen=True, slots=True)
class FieldRule:
    """What a filter may do with one property: `kind` is text, number, time or boolean."""

    kind: str
    operators: frozenset[str]


POOL_FIELDS: Mapping[str, FieldRule] = {}
NODE_FIELDS: Mapping[str, FieldRule] = {}
JOB_FIELDS: Mapping[str, FieldRule] = {}
TASK_FIELDS: Mapping[str, FieldRule] = {}
FILE_FIELDS: Mapping[str, FieldRule] = {}
PREPARATION_FIELDS: Mapping[str, FieldRule] = {}
NODE_COUNT_FIELDS: Mapping[str, FieldRule] = {}
IMAGE_FIELDS: Mapping[str, FieldRule] = {}


def parse_filter(text: str, fields: Mapping[str, FieldRule]) -> Predicate:
    """Turn a filter into a test of wire entities (nested dicts). Raises FilterError."""
    raise NotImplementedError


def parse_select(text: str) -> frozenset[str] | None:
    """Property names of a `$select`, None when everything is wanted. Raises FilterError."""
    raise NotImplementedError


def select(entity: Mapping[str, Any], text: str) -> dict[str, Any]:
    """The properties of an entity that `$select` names; unknown names are ignored."""
    raise NotImplementedError
