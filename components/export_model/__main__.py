"""Export by hand: `python -m components.export_model --help`."""

import json
import logging
import os
import sys
from pathlib import Path

from components.contracts.command_line import make_parser, options_from, parse
from components.contracts.errors import run_main
from components.export_model.options import ExportOptions


def main(arguments: list[str] | None = None) -> None:
    """Parse, export, write the result file."""
    parser = make_parser(
        "python -m components.export_model",
        "Publish an evaluated checkpoint as a SavedModel, after proving that it serves what was "
        "trained, and promote it if it beats the champion.",
        ExportOptions,
    )
    parser.add_argument("--export-root", required=True, help="where versions lie (a storage uri)")
    parser.add_argument("--result", default="", help="file for the result, as JSON")
    values = parse(parser, arguments)
    export_root, result = values.pop("export_root"), values.pop("result")
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    options = options_from(ExportOptions, values)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    from components.export_model.export import export_model  # imports TensorFlow

    logging.getLogger("absl").setLevel(logging.WARNING)  # TensorFlow's own progress lines
    found = export_model(options, export_root)
    if result:
        Path(result).write_text(json.dumps(found, allow_nan=False), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(run_main(main))
