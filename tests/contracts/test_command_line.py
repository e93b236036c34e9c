"""Options as command lines, pipeline parameters and YAML keys: the same names, the same values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from components.contracts.command_line import command_line, make_parser, options_from, parse
from components.contracts.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Options:
    """Some options.

    Attributes:
        name: a text, which may be long: so long
            that it goes on here.
        count: a number.
        share: a fraction.
        on: a switch.
        kind: one of two.
        columns: a list.
        source: a text or a list.
        nested: a mapping.
    """

    name: str
    count: int = 3
    share: float = 0.5
    on: bool = False
    kind: Literal["a", "b"] = "a"
    columns: tuple[str, ...] = ()
    source: str | tuple[str, ...] = "x"
    nested: Mapping[str, Any] = field(default_factory=dict)


def read(arguments):
    return options_from(Options, parse(make_parser("prog", "Text.", Options), arguments))


VALUES = {
    "name": "n = 1, 'ü'",
    "count": 7,
    "share": 0.25,
    "on": True,
    "kind": "b",
    "columns": ["x", "y z"],
    "source": ["p", "q"],
    "nested": {"a": {"min": 0.5}, "units": [64, 32]},
}


def test_a_command_line_carries_every_value():
    expected = {**VALUES, "columns": ("x", "y z"), "source": ("p", "q")}
    assert read(command_line(VALUES)) == Options(**expected)


def test_a_text_that_is_no_list_stays_a_text():
    assert read(["--name=n", "--source=/data/*.csv"]).source == "/data/*.csv"


def test_whole_numbers_that_became_floats_on_the_way_are_whole_again():
    options = options_from(Options, {"name": "n", "count": 5.0, "nested": {"units": [64.0, 1.5]}})
    assert options.count == 5
    assert options.nested == {"units": [64, 1.5]}
    assert type(options.nested["units"][0]) is int
    assert options_from(Options, {"name": "n", "count": "5.0"}).count == 5


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"count": "many"}, "option count: received 'many', expected int"),
        ({"count": 1.5}, "whole number"),
        ({"on": "perhaps"}, "true or false"),
        ({"kind": "c"}, "one of 'a', 'b'"),
        ({"columns": "{"}, "option columns"),
        ({"cuont": 1}, "unknown option 'cuont'"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_does_not_fit_is_said(values, text):
    with pytest.raises(InputError) as error:
        options_from(Options, {"name": "n", **values})
    assert text in str(error.value)


def test_a_missing_flag_and_an_unknown_one_are_bad_input():
    with pytest.raises(InputError, match="--name"):
        read([])
    with pytest.raises(InputError, match="--other"):
        read(["--name=n", "--other=1"])


def test_help_says_what_each_flag_is(capsys):
    with pytest.raises(SystemExit):
        read(["--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "a text, which may be long: so long that it goes on here." in shown
    assert "a number. (default: 3)" in shown
