"""Train by hand: `python -m components.train_model --help`."""

import json
import sys
from pathlib import Path

from components.contracts.command_line import make_parser, options_from, parse
from components.contracts.errors import run_main
from components.train_model.options import TrainOptions
from components.train_model.train import result_of, train_model
from components.train_model.worker.logs import set_up_logging


def main(arguments: list[str] | None = None) -> None:
    """Parse, train, write the result file."""
    parser = make_parser(
        "python -m components.train_model",
        "Train a Keras model on a committed dataset; killed at any moment, it goes on from there.",
        TrainOptions,
    )
    parser.add_argument("--output-uri", required=True, help="where the run lies (a storage uri)")
    parser.add_argument("--result", default="", help="file for the result, as JSON")
    values = parse(parser, arguments)
    output_uri, result = values.pop("output_uri"), values.pop("result")
    set_up_logging()
    completion = train_model(options_from(TrainOptions, values), output_uri)
    if result:
        Path(result).write_text(json.dumps(result_of(completion, output_uri)), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(run_main(main))
