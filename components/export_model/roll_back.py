"""Roll back: `python -m components.export_model.roll_back --export-root URI [--version N]`."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from components.contracts.command_line import make_parser, options_from, parse
from components.contracts.errors import InputError, run_main
from components.export_model.champion import roll_back, write_serving_config
from components.storage.open import open_store


@dataclass(frozen=True, kw_only=True)
class RollBackOptions:
    """What to take back.

    Attributes:
        export_root: where versions lie (a storage uri).
        version: to go back to; 0: the champion before the present one.
    """

    export_root: str
    version: int = 0

    def __post_init__(self) -> None:
        """Raises InputError for values that cannot work."""
        if self.version < 0:
            raise InputError(f"option version: received {self.version}, expected a version")


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse, move `latest.json`, say what serves now."""
    parser = make_parser(
        "python -m components.export_model.roll_back",
        "Make an earlier version the champion again; the one taken back is not promoted again.",
        RollBackOptions,
    )
    options = options_from(RollBackOptions, parse(parser, arguments))
    root = open_store(options.export_root)
    champion = roll_back(root, options.version)
    write_serving_config(root)
    print(f"the champion of {root.uri} is version {champion.version}")


if __name__ == "__main__":
    sys.exit(run_main(main))
