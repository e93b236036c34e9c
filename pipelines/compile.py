"""Compile the pipelines to pipelines/compiled: `python -m pipelines.compile [--check]`."""

import argparse
import contextlib
import io
import sys
import tempfile
from pathlib import Path

from kfp import compiler

from components.contracts.errors import InputError, run_main
from pipelines.convert_in_parts import convert_in_parts
from pipelines.retrain_and_promote import retrain_and_promote
from pipelines.train_and_export import train_and_export

COMPILED = Path(__file__).resolve().parent / "compiled"
PIPELINES = {
    "convert_in_parts.yaml": convert_in_parts,
    "retrain_and_promote.yaml": retrain_and_promote,
    "train_and_export.yaml": train_and_export,
}


def main() -> None:
    """Write the compiled files, or with --check make sure that the committed ones are current."""
    parser = argparse.ArgumentParser(prog="python -m pipelines.compile", description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing, fail if out of date")
    check = parser.parse_args().check
    for name, pipeline in PIPELINES.items():
        text = compiled(pipeline)
        path = COMPILED / name
        if not check:
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            raise InputError(f"{path} is not what its pipeline compiles to: run make compile")


def compiled(pipeline: object) -> str:
    """The YAML of a pipeline."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "pipeline.yaml")
        with contextlib.redirect_stdout(io.StringIO()):
            compiler.Compiler().compile(pipeline, str(path))
        return path.read_text(encoding="utf-8")


if __name__ == "__main__":
    sys.exit(run_main(main))
