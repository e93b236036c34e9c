"""Convert tables or images to TFRecord: `python -m components.make_tfrecords --help`."""

import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from components.contracts.command_line import make_parser, options_from, parse
from components.contracts.dataset import Dataset
from components.contracts.errors import run_main
from components.make_tfrecords.commit import PAGE_NAME
from components.make_tfrecords.convert import (
    brings_nothing_new,
    following_champion,
    make_tfrecords,
)
from components.make_tfrecords.options import ConvertOptions
from components.make_tfrecords.shares import convert_share, plan_shares
from components.storage.open import open_store


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line, convert, and write the result."""
    parser = make_parser(
        "python -m components.make_tfrecords",
        "Convert tables or images to TFRecord files and commit them as one dataset.",
        ConvertOptions,
    )
    parser.add_argument("--output-uri", required=True, help="where the dataset is committed")
    parser.add_argument(
        "--reuse-uri", default="", help="where earlier conversions are looked up by fingerprint"
    )
    parser.add_argument(
        "--stage",
        default="whole",
        choices=("whole", "plan", "share"),
        help="plan: only plan, for --num-shares machines; share: convert share number --share of "
        "the plan; whole (default): all, taking up a plan and parts that are there, and commit",
    )
    parser.add_argument("--share", type=int, default=0, help="number of the share, from 0")
    parser.add_argument("--num-shares", type=int, default=1, help="how many machines share")
    parser.add_argument("--html", default="", help="file for a copy of the page of statistics")
    parser.add_argument("--result", help="file for a summary in JSON; without it, standard output")
    values = parse(parser, arguments)
    names = ("output_uri", "reuse_uri", "html", "stage", "share", "num_shares")
    result, given = values.pop("result", ""), {name: values.pop(name) for name in names}
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    options = following_champion(options_from(ConvertOptions, values))
    text = json.dumps(_run(options, **given))
    if result:
        Path(result).write_text(text, encoding="utf-8")
    else:
        print(text)


def _run(
    options: ConvertOptions,
    *,
    output_uri: str,
    reuse_uri: str,
    html: str,
    stage: str,
    share: int,
    num_shares: int,
) -> dict[str, Any]:
    if stage == "share":
        return {"num_parts": convert_share(options, output_uri, share, num_shares)}
    is_nothing_new = brings_nothing_new(options)
    if is_nothing_new:
        logging.info("nothing new since the last model that was judged: nothing to convert")
    if stage == "plan":
        shares = [] if is_nothing_new else plan_shares(options, output_uri, num_shares, reuse_uri)
        return {"output_uri": output_uri, "shares": shares}
    if is_nothing_new:
        return _NOTHING_NEW
    dataset = make_tfrecords(options, output_uri, reuse_uri)
    if html:
        Path(html).write_bytes(open_store(dataset.uri).read(PAGE_NAME))
    return _result_of(dataset, output_uri)


_NOTHING_NEW = {
    "dataset_uri": "",
    "num_rows": 0,
    "num_rejected": 0,
    "splits": {},
    "fingerprint": "",
    "reused": False,
}


def _result_of(dataset: Dataset, output_uri: str) -> dict[str, Any]:
    return {
        "dataset_uri": dataset.uri,
        "num_rows": dataset.num_rows,
        "num_rejected": dataset.num_rejected,
        "splits": dataset.splits,
        "fingerprint": dataset.fingerprint,
        "reused": dataset.uri.rstrip("/") != output_uri.rstrip("/"),
    }


if __name__ == "__main__":
    sys.exit(run_main(main))
