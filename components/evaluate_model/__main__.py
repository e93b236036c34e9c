"""Evaluate by hand: `python -m components.evaluate_model --help`."""

import json
import logging
import os
import sys
from pathlib import Path

from components.contracts.command_line import make_parser, options_from, parse
from components.contracts.errors import run_main
from components.contracts.report import PAGE_NAME
from components.evaluate_model.options import EvaluateOptions
from components.storage.open import open_store


def main(arguments: list[str] | None = None) -> None:
    """Parse, evaluate, write the result file."""
    parser = make_parser(
        "python -m components.evaluate_model",
        "Score a committed checkpoint on a split, decide by thresholds, and commit a report.",
        EvaluateOptions,
    )
    parser.add_argument("--output-uri", required=True, help="where the report lies (a storage uri)")
    parser.add_argument("--result", default="", help="file for the result, as JSON")
    parser.add_argument("--html", default="", help="file for a copy of the report's page")
    values = parse(parser, arguments)
    output_uri, result, page = (values.pop(name) for name in ("output_uri", "result", "html"))
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    options = options_from(EvaluateOptions, values)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    from components.evaluate_model.evaluate import evaluate_model, result_of  # imports TensorFlow

    logging.getLogger("absl").setLevel(logging.WARNING)  # TensorFlow's own progress lines
    report = evaluate_model(options, output_uri)
    if page:
        Path(page).parent.mkdir(parents=True, exist_ok=True)
        Path(page).write_bytes(open_store(output_uri).read(PAGE_NAME))
    if result:
        text = json.dumps(result_of(report, output_uri), allow_nan=False)
        Path(result).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(run_main(main))
