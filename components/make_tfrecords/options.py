"""Options of the conversion.

Field names are command line flags, pipeline parameters and keys of params.yaml.
"""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from components.contracts.dataset import Layout, Task
from components.contracts.errors import InputError

SourceFormat = Literal["auto", "csv", "jsonl", "parquet", "images"]
Encoder = Literal["auto", "plain", "compiled"]
MultiFrame = Literal["reject", "first"]

MISSING_TOKENS = ("", "NA", "N/A", "n/a", "NaN", "nan", "NULL", "null", "None", "#N/A")


@dataclass(frozen=True, kw_only=True)
class ConvertOptions:
    """What to convert, and how.

    Attributes:
        source: files, directories or globs, local or storage uris; one or several.
        label: name of the label column.
        task: binary, multiclass or regression; auto decides by the label's values.
        classes: label values in class order; empty: learned from the data.
        drop: columns to leave out.
        splits: fraction of the rows by split name; the statistics describe the first one.
        group: column whose equal values stay on one side of the split; empty: equal rows do.
        seed: of the split.
        num_shards: shards of each split; 0: chosen by the size of the source.
        layout: columns (one feature a column) or packed (one feature a kind).
        compression: of the shards: GZIP or empty.
        schema_uri: dataset or schema.json of an earlier run, which this one must follow; empty:
            inferred.
        champion_root: export root of earlier models: the schema of its champion is followed where
            schema_uri is empty, and sources whose model was judged before are not converted again.
        max_unseen_share: with schema_uri: largest share of a column's strings that its vocabulary
            lacks.
        max_rejected_share: largest share of the rows that may be rejected.
        kinds: kind or source type by column, where the inferred one is not wanted.
        missing_tokens: texts that mean missing in columns of numbers, times and booleans.
        string_missing_tokens: texts that mean missing in columns of strings.
        column_missing_tokens: the same for single columns, separated by commas.
        source_format: csv, jsonl, parquet or images; auto decides by content.
        delimiter: of CSV fields; empty: found in the header.
        encoding: of text files; empty: UTF-8, or what a byte order mark says.
        image_column: column of a table that holds images or their paths.
        image_height: rows of pixels; 0: as found, if all images agree.
        image_width: columns of pixels; 0: as found, if all images agree.
        image_channels: 1, 3 or 4; 0: 1 if all images are grey, else 3.
        image_depth: bits a channel: 8 or 16.
        image_multi_frame: what to do with animations: reject, or take the first frame.
        encoder: compiled or plain; auto: compiled where it pays. Both write the same bytes.
        processes: that convert at once; 0: as many as there are processors.
        workspace: directory for temporary files; empty: the system's.
    """

    source: str | tuple[str, ...]
    label: str
    task: Task | Literal["auto"] = "auto"
    classes: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    splits: Mapping[str, float] = field(default_factory=lambda: {"train": 0.8, "eval": 0.2})
    group: str = ""
    seed: int = 0
    num_shards: int = 0
    layout: Layout = "columns"
    compression: Literal["", "GZIP"] = ""
    schema_uri: str = ""
    champion_root: str = ""
    max_unseen_share: float = 0.1
    max_rejected_share: float = 0.0
    kinds: Mapping[str, str] = field(default_factory=dict)
    missing_tokens: tuple[str, ...] = MISSING_TOKENS
    string_missing_tokens: tuple[str, ...] = ("",)
    column_missing_tokens: Mapping[str, str] = field(default_factory=dict)
    source_format: SourceFormat = "auto"
    delimiter: str = ""
    encoding: str = ""
    image_column: str = ""
    image_height: int = 0
    image_width: int = 0
    image_channels: int = 0
    image_depth: int = 8
    image_multi_frame: MultiFrame = "reject"
    encoder: Encoder = "auto"
    processes: int = 0
    workspace: str = ""

    def __post_init__(self) -> None:
        sources = (self.source,) if isinstance(self.source, str) else tuple(self.source)
        object.__setattr__(self, "source", sources)
        for name in ("classes", "drop", "missing_tokens", "string_missing_tokens"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if not sources or not all(sources):
            raise InputError("source is empty: name at least one file, directory or glob")
        if not self.label:
            raise InputError("label is empty: name the column to predict")
        self._check_choices()
        self._check_numbers()
        self._check_splits()

    @property
    def sources(self) -> tuple[str, ...]:
        """`source` as a tuple."""
        return (self.source,) if isinstance(self.source, str) else self.source

    def tokens_of(self, column: str, *, is_text: bool) -> tuple[str, ...]:
        """Texts that mean missing in a column."""
        if column in self.column_missing_tokens:
            return tuple(self.column_missing_tokens[column].split(","))
        return self.string_missing_tokens if is_text else self.missing_tokens

    def _check_choices(self) -> None:
        choices = {
            "task": ("auto", *get_args(Task)),
            "layout": get_args(Layout),
            "compression": ("", "GZIP"),
            "source_format": get_args(SourceFormat),
            "encoder": get_args(Encoder),
            "image_multi_frame": get_args(MultiFrame),
            "image_channels": (0, 1, 3, 4),
            "image_depth": (8, 16),
        }
        for name, allowed in choices.items():
            value = getattr(self, name)
            if value not in allowed:
                raise InputError(
                    f"{name}={value!r}: expected one of {', '.join(map(repr, allowed))}"
                )
        if len(self.delimiter.encode()) > 1:
            raise InputError(f"delimiter={self.delimiter!r}: expected one character of ASCII")

    def _check_numbers(self) -> None:
        for name in ("num_shards", "processes", "image_height", "image_width"):
            if getattr(self, name) < 0:
                raise InputError(f"{name}={getattr(self, name)}: expected 0 or more")
        for name in ("max_rejected_share", "max_unseen_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"{name}={getattr(self, name)}: expected a share from 0 to 1")

    def _check_splits(self) -> None:
        if not self.splits:
            raise InputError(
                "splits is empty: expected fractions by name, for example train=0.8 eval=0.2"
            )
        for name, fraction in self.splits.items():
            if not name.replace("_", "").isalnum() or not name.isascii():
                raise InputError(
                    f"split {name!r}: expected a name of letters, digits and underscores"
                )
            if not 0 < fraction <= 1:
                raise InputError(f"split {name}={fraction}: expected a fraction above 0, at most 1")
        if abs(sum(self.splits.values()) - 1) > 1e-6:
            raise InputError(
                f"the fractions of the splits {dict(self.splits)} add up to "
                f"{sum(self.splits.values()):g}, expected 1"
            )


def unknown_column(option: str, column: str, known: Sequence[str]) -> str:
    """The message for an option that names a column which the source does not have."""
    near = difflib.get_close_matches(column, known, 1, 0.5)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return (
        f"{option} names a column {column!r} that the source does not have. It has "
        f"{list(known)}.{hint}"
    )
