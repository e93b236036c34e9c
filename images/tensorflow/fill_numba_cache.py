"""Compile the converter's functions into NUMBA_CACHE_DIR, by converting small tables."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path


def row(n: int) -> str:
    """A line with every type of column, and a missing value now and then."""
    text = "" if n % 9 == 0 else f"word {n % 5}"
    return f"{n / 7:.4f},{n},{text},{n % 2 == 0},2024-01-{n % 28 + 1:02d},{n % 3}\n"


TABLE = "number,integer,text,flag,day,label\n" + "".join(map(row, range(2000)))


def main() -> None:
    """Convert in both layouts, with and without quotes in the table."""
    folder = Path(tempfile.mkdtemp())
    tables = {"plain": TABLE, "quoted": TABLE.replace("word", '"word ""quoted"""')}
    for name, text in tables.items():
        (folder / f"{name}.csv").write_text(text, encoding="utf-8")
        for layout in ("columns", "packed"):
            subprocess.run(
                [
                    *(sys.executable, "-m", "components.make_tfrecords"),
                    *("--source", str(folder / f"{name}.csv"), "--label", "label"),
                    *("--layout", layout, "--output-uri", str(folder / f"{name}-{layout}")),
                ],
                check=True,
            )
    if not any(Path(os.environ["NUMBA_CACHE_DIR"]).rglob("*.nbi")):
        raise SystemExit("nothing was compiled into NUMBA_CACHE_DIR")


if __name__ == "__main__":
    main()
