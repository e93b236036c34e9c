"""Columns of JSON values: the type that they have by themselves, and arrays of a given type."""

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from components.contracts.dataset import Feature

_SCALARS = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    type(None): pa.null(),
}
_NAMES = {
    bool: "a boolean",
    int: "a number",
    float: "a number",
    str: "a string",
    list: "a list",
    dict: "an object",
}


class ConflictError(Exception):
    """A value that no type holds, or none that holds another one too.

    Attributes:
        index: position of the value.
        what: it is, with an article.
        other: position and description of the value that it conflicts with, if it is not alone.
    """

    def __init__(self, index: int, what: str, other: tuple[int, str] | None = None) -> None:
        super().__init__(what)
        self.index = index
        self.what = what
        self.other = other

    def but(self, place: Callable[[int], str]) -> str:
        """What stands against it, in words."""
        return f", but {self.other[1]} at {place(self.other[0])}" if self.other else ""


def natural_type(values: Sequence[Any]) -> pa.DataType:
    """The type of all values of a column. Raises ConflictError."""
    first: dict[type, int] = {}
    for index, value in enumerate(values):
        first.setdefault(type(value), index)
    present = [kind for kind in first if kind is not type(None)]
    if list in present and len(present) == 1:
        return pa.list_(_element_type(values))
    if dict in present or len(present) > 1 and set(present) != {int, float}:
        one, other = present[0], present[-1]
        raise ConflictError(first[other], _NAMES[other], (first[one], _NAMES[one]))
    if int in present:
        _check_range(values)
    if not present:
        return pa.null()
    return pa.float64() if float in present else _SCALARS[present[0]]


def _element_type(values: Sequence[Any]) -> pa.DataType:
    owners = [index for index, value in enumerate(values) for _ in value or ()]
    items = [item for value in values for item in value or ()]
    for owner, item in zip(owners, items, strict=True):
        if isinstance(item, list | dict):
            raise ConflictError(owner, f"a list that holds {_NAMES[type(item)]}")
    try:
        return natural_type(items)
    except ConflictError as conflict:
        other = conflict.other and (owners[conflict.other[0]], "a list with " + conflict.other[1])
        raise ConflictError(
            owners[conflict.index], "a list with " + conflict.what, other
        ) from conflict


def _check_range(values: Sequence[Any]) -> None:
    for index, value in enumerate(values):
        if type(value) is int and not -(2**63) <= value < 2**63:
            raise ConflictError(index, f"{value}, which is beyond int64,")


def typed_array(
    values: Sequence[Any], feature: Feature, *, lenient: bool
) -> tuple[pa.Array, npt.NDArray[np.bool_]]:
    """An array for a feature.

    And a mask of values that do not have its type (missing in the array).

    Args:
        values: of JSON.
        feature: with the source type to expect; without one, any value is taken as text.
        lenient: whether the user chose the type: a string takes any value as text, other types
            take text, which is converted later.
    """
    if not feature.source_type or (lenient and feature.kind == "string"):
        texts = [v if v is None or type(v) is str else json.dumps(v) for v in values]
        return pa.array(texts, pa.string()), np.zeros(len(values), bool)
    target, expected = _expected(feature, has_text=lenient and str in set(map(type, values)))
    wrong = np.array([value is not None and not expected(value) for value in values], bool)
    kept = [None if bad else value for value, bad in zip(values, wrong, strict=True)]
    return pa.array(kept, target), wrong


def _expected(feature: Feature, *, has_text: bool) -> tuple[pa.DataType, Callable[[Any], bool]]:
    """Arrow type, and a test of values for it."""
    scalar = re.sub(r"^list<\w+: (.*)>$", r"\1", feature.source_type)
    target, expected = pa.int64(), _is_int64
    if has_text or scalar == "string":
        target, expected = pa.string(), lambda value: type(value) is str
    elif scalar == "double":
        target, expected = pa.float64(), lambda value: type(value) in (int, float)
    elif scalar == "bool":
        target, expected = pa.bool_(), lambda value: type(value) is bool
    if feature.shape and feature.kind != "image":
        return (
            pa.list_(target),
            lambda value: (
                type(value) is list and all(item is None or expected(item) for item in value)
            ),
        )
    return target, expected


def _is_int64(value: Any) -> bool:
    return type(value) is int and -(2**63) <= value < 2**63
