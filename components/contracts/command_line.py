"""Command lines made from options dataclasses: one name for a field, a flag, a parameter and a key.

Agreed between every step's `__main__`, the runner (which writes such command lines) and the
pipelines. A flag is its field's name with dashes; tuples and mappings are given as JSON.
"""

import argparse
import dataclasses
import json
import re
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from components.contracts.errors import InputError

Options = TypeVar("Options")


class _Parser(argparse.ArgumentParser):
    """argparse, with wrong usage reported as bad input instead of exit code 2."""

    def error(self, message: str) -> typing.NoReturn:
        raise InputError(f"{message}. See {self.prog} --help")


def make_parser(prog: str, description: str, options: type) -> argparse.ArgumentParser:
    """A parser with one flag for each field of `options`, described by its docstring."""
    parser = _Parser(prog=prog, description=description, allow_abbrev=False)
    texts = _attribute_texts(options)
    for field in dataclasses.fields(options):
        required = (
            field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        )
        default = "" if required else f" (default: {_shown(_default_of(field))})"
        parser.add_argument(
            "--" + field.name.replace("_", "-"),
            dest=field.name,
            required=required,
            default=argparse.SUPPRESS,
            metavar="VALUE",
            help=(texts.get(field.name, "") + default).replace("%", "%%"),
        )
    return parser


def options_from(options: type[Options], values: Mapping[str, Any]) -> Options:
    """Build `options` from texts or JSON values by field name.

    Raises:
        InputError: an unknown name, a value of the wrong type, or what `__post_init__` refuses.
    """
    kinds = get_type_hints(options)
    unknown = sorted(set(values) - set(kinds))
    if unknown:
        raise InputError(f"unknown option {unknown[0]!r}; there are {', '.join(sorted(kinds))}")
    return options(**{name: coerced(name, value, kinds[name]) for name, value in values.items()})


def coerced(name: str, value: Any, expected: Any) -> Any:
    """Turn a text, or a JSON value whose integers became floats on the way, into `expected`."""
    origin = get_origin(expected) or expected
    if origin in (typing.Union, types.UnionType):
        return _coerced_to_one_of(name, value, get_args(expected))
    try:
        if origin is typing.Literal:
            if value not in get_args(expected):
                raise ValueError(f"one of {', '.join(map(repr, get_args(expected)))}")
            return value
        if origin is bool:
            return _boolean(value)
        if origin is int:
            number = float(value)
            if not number.is_integer():
                raise ValueError("a whole number")
            return int(value) if isinstance(value, str) and value.isdigit() else int(number)
        if origin in (float, str):
            return origin(value)
        parsed = json.loads(value) if isinstance(value, str) else value
        if origin is tuple:
            return tuple(_whole(item) for item in parsed)
        return {key: _whole(item) for key, item in parsed.items()}
    except (ValueError, TypeError, AttributeError) as error:
        shown = getattr(expected, "__name__", str(expected))
        raise InputError(f"option {name}: received {value!r}, expected {shown}: {error}") from error


def _coerced_to_one_of(name: str, value: Any, kinds: tuple[Any, ...]) -> Any:
    """A text is a list only if it looks like one; otherwise the first kind that fits."""
    listed = not isinstance(value, str) or value.lstrip().startswith(("[", "{"))
    ordered = sorted(kinds, key=lambda kind: (str(kind).startswith("tuple")) != listed)
    for kind in ordered:
        try:
            return coerced(name, value, kind)
        except InputError as error:
            failure = error
    raise failure


def command_line(values: Mapping[str, Any]) -> list[str]:
    """The flags that `make_parser` reads back as `values`."""
    return [
        f"--{name.replace('_', '-')}={value if isinstance(value, str) else json.dumps(value)}"
        for name, value in values.items()
    ]


def parse(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> dict[str, Any]:
    """Parse to a dictionary of the flags that were given."""
    return vars(parser.parse_args(arguments))


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if str(value).lower() in ("true", "1", "yes"):
        return True
    if str(value).lower() in ("false", "0", "no"):
        return False
    raise ValueError("true or false")


def _whole(value: Any) -> Any:
    """KFP passes the integers inside lists and dictionaries as floats."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: _whole(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_whole(item) for item in value]
    return value


def _default_of(field: "dataclasses.Field[Any]") -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _shown(value: Any) -> str:
    return value if isinstance(value, str) and value else json.dumps(value)


def _attribute_texts(options: type) -> dict[str, str]:
    """Field name to its text in the docstring's Attributes section."""
    section = (options.__doc__ or "").partition("Attributes:")[2]
    entries = re.split(r"\n        (?=[\w, ]+: )", "\n" + section.strip("\n"))
    texts: dict[str, str] = {}
    for entry in entries:
        names, separator, text = entry.strip().partition(": ")
        if separator:
            texts |= dict.fromkeys(
                (name.strip() for name in names.split(",")), " ".join(text.split())
            )
    return texts
