"""Convert tables or images to TFRecord: `python -m components.make_tfrecords --help`."""

import argparse
import dataclasses
import json
import logging
import re
import sys
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from components.contracts.errors import run_main
from components.make_tfrecords.convert import make_tfrecords
from components.make_tfrecords.options import ConvertOptions


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line, convert, and write the result."""
    parser = _parser()
    values = vars(parser.parse_args(arguments))
    output_uri, result = values.pop("output_uri"), values.pop("result")
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    options = ConvertOptions(**{name: value for name, value in values.items() if value is not None})
    dataset = make_tfrecords(options, output_uri)
    text = json.dumps(
        {
            "dataset_uri": dataset.uri,
            "num_rows": dataset.num_rows,
            "num_rejected": dataset.num_rejected,
            "splits": dataset.splits,
            "fingerprint": dataset.fingerprint,
        }
    )
    if result:
        Path(result).write_text(text, encoding="utf-8")
    else:
        print(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m components.make_tfrecords",
        description="Convert tables or images to TFRecord files and commit them as one dataset.",
    )
    helps = dict(re.findall(r"^ {8}(\w+): (.+)$", ConvertOptions.__doc__ or "", re.MULTILINE))
    hints = typing.get_type_hints(ConvertOptions)
    for field in dataclasses.fields(ConvertOptions):
        default = field.default if field.default is not dataclasses.MISSING else None
        shown = f" (default: {default})" if default not in (None, "", ()) else ""
        parser.add_argument(
            "--" + field.name.replace("_", "-"),
            required=field.name in ("source", "label"),
            help=(helps.get(field.name, "") + shown).replace("%", "%%"),
            **_argument_kind(field.name, hints[field.name]),
        )
    parser.add_argument("--output-uri", required=True, help="where the dataset is committed")
    parser.add_argument("--result", help="file for a summary in JSON; without it, standard output")
    return parser


def _argument_kind(name: str, hint: Any) -> dict[str, Any]:
    origin = typing.get_origin(hint)
    if name == "source" or origin is tuple:
        return {"nargs": "+", "metavar": "VALUE"}
    if origin in (dict, Mapping):
        number = float in typing.get_args(hint)
        return {"nargs": "+", "metavar": "NAME=VALUE", "action": _Pairs, "type": _Pair(number)}
    return (
        {"type": hint, "metavar": hint.__name__.upper()}
        if hint in (int, float)
        else {"metavar": "VALUE"}
    )


class _Pair:
    """Parses NAME=VALUE."""

    def __init__(self, number: bool) -> None:
        self._number = number

    def __call__(self, text: str) -> tuple[str, Any]:
        name, separator, value = text.partition("=")
        if not separator:
            raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
        return name, float(value) if self._number else value


class _Pairs(argparse.Action):
    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        setattr(namespace, self.dest, dict(values))


if __name__ == "__main__":
    sys.exit(run_main(main))
