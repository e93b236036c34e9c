"""What will be done: the schema, and which part of the sources becomes which shard.

A plan depends on the sources and the options alone, never on the number of processes or machines;
so do the bytes.
"""

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from components.contracts.dataset import FORMAT_VERSION, Schema
from components.make_tfrecords.options import ConvertOptions
from components.make_tfrecords.readers.base import Reader, Segment
from components.make_tfrecords.sources import Source

# Changes whenever the same input and options give other bytes than before.
CODE_VERSION = 2
# Enough shards for a few readers as soon as there is something to share, then larger ones.
SMALL_SHARD_BYTES = 4 << 20
LARGE_SHARD_BYTES = 64 << 20
MANY_SHARDS = 64
MAX_SHARDS = 4096
# Options that say where and how fast, not what.
_WITHOUT_EFFECT = (
    "source",
    "champion_root",
    "processes",
    "workspace",
    "encoder",
    "max_rejected_share",
    "schema_uri",  # its content counts
)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """See the module. `parts[i]` are the segments of the shards number i.

    `strict`: the schema is known to fit.
    """

    fingerprint: str
    schema: Schema
    parts: tuple[tuple[Segment, ...], ...]
    strict: bool

    def to_json(self) -> dict[str, Any]:
        """JSON form, for the record of a part."""
        return {
            "fingerprint": self.fingerprint,
            "schema": self.schema.to_json(),
            "parts": [[dataclasses.asdict(s) for s in part] for part in self.parts],
            "strict": self.strict,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Plan":
        """The inverse of `to_json`."""
        return cls(
            fingerprint=data["fingerprint"],
            schema=Schema.from_json(data["schema"]),
            parts=tuple(tuple(Segment(**s) for s in part) for part in data["parts"]),
            strict=data["strict"],
        )

    @cached_property
    def digest(self) -> str:
        """Of everything in the plan: results of parts are reused under the same digest only."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()[:32]


def fingerprint_of(
    sources: Sequence[Source], options: ConvertOptions, schema: Schema | None
) -> str:
    """Hex digest over the sources' names and contents.

    The options with an effect and a given schema.
    """
    effective = {
        name: value
        for name, value in dataclasses.asdict(options).items()
        if name not in _WITHOUT_EFFECT
    }
    text = json.dumps(
        {
            "versions": [FORMAT_VERSION, CODE_VERSION],
            "sources": [(s.name, s.size, s.crc32c) for s in sources],
            "options": effective,
            "schema": schema.to_json() if schema else None,
        },
        sort_keys=True,
    )
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def chosen_shards(num_bytes: int) -> int:
    """Number of shards for a source of this size.

    A power of two, so that workers share them evenly.
    """
    shards = max(min(num_bytes / SMALL_SHARD_BYTES, MANY_SHARDS), num_bytes / LARGE_SHARD_BYTES)
    return min(1 << round(math.log2(max(1, shards))), MAX_SHARDS)


def plan_parts(
    readers: Sequence[Reader], sizes: Sequence[int], num_shards: int
) -> tuple[tuple[Segment, ...], ...]:
    """Cut the sources into the parts that become shards, in source order and of similar size."""
    sizes = [max(size, 1) for size in sizes]  # images may be empty files
    total = sum(sizes)
    wanted = num_shards or chosen_shards(total)
    pieces: list[tuple[Segment, int]] = []
    for index, (reader, size) in enumerate(zip(readers, sizes, strict=True)):
        for start, stop in reader.split(max(1, round(wanted * size / total))):
            segment = Segment(source=index, start=start, stop=stop)
            pieces.append((segment, max(1, stop - start)))
    return _grouped(pieces, wanted)


def _grouped(pieces: Sequence[tuple[Segment, int]], wanted: int) -> tuple[tuple[Segment, ...], ...]:
    total = sum(size for _, size in pieces)
    groups: list[list[Segment]] = [[] for _ in range(min(wanted, len(pieces)))]
    done = 0
    for position, (segment, size) in enumerate(pieces):
        share = (done + size / 2) * len(groups) / total
        group = min(int(share), position, len(groups) - 1)
        groups[group].append(segment)
        done += size
    return tuple(tuple(group) for group in groups if group)
