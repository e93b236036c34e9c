"""A conversion shared by several machines: planned by one, converted by many, committed by one.

The plan and the finished parts lie at the output's uri, where `make_tfrecords` finds them: it
converts what is missing and commits. So the bytes are those of one machine, and a share that failed
to do its work costs time only.
"""

import json
import logging

from components.contracts.errors import InputError
from components.make_tfrecords.convert import (
    PLAN_NAME,
    clear,
    converted_before,
    inputs_of,
    sampled_plan,
    stored_plan,
)
from components.make_tfrecords.options import ConvertOptions
from components.make_tfrecords.readers.base import MismatchError
from components.make_tfrecords.run import Workers, temporary_folder
from components.storage.open import open_store

log = logging.getLogger(__name__)


def plan_shares(
    options: ConvertOptions, output_uri: str, num_shares: int, reuse_uri: str = ""
) -> list[int]:
    """Leave a plan at `output_uri`, if none of the same conversion is there.

    Returns:
        Numbers of the shares, at most `num_shares`; none if the same was converted before.

    Raises:
        InputError: as for `make_tfrecords`.
    """
    if num_shares < 1:
        raise InputError(f"num_shares={num_shares}: expected 1 or more")
    store = open_store(output_uri)
    with temporary_folder(options) as folder:
        inputs, fingerprint = inputs_of(options, folder)
        if converted_before(store, fingerprint, reuse_uri) is not None:
            return []
        plan = stored_plan(store, fingerprint)
        if plan is None:
            clear(store)
            plan = sampled_plan(inputs, fingerprint, options, Workers(inputs, options))
            store.write(PLAN_NAME, json.dumps(plan.to_json()).encode())
    return list(range(min(num_shares, len(plan.parts))))


def convert_share(options: ConvertOptions, output_uri: str, share: int, num_shares: int) -> int:
    """Convert every `num_shares`-th part of the plan at `output_uri`, beginning with `share`.

    Args:
        options: as for `plan_shares`.
        output_uri: likewise.
        share: its number.
        num_shares: as for `plan_shares`; 0: there is nothing to do.

    Returns:
        Number of parts in the share; 0 if the rows contradict the plan, which was made from a
        sample: whoever commits plans anew, from all rows.

    Raises:
        InputError: the sources cannot be read, or are not those that were planned.
    """
    if not num_shares:
        return 0
    store = open_store(output_uri)
    with temporary_folder(options) as folder:
        inputs, fingerprint = inputs_of(options, folder)
        plan = stored_plan(store, fingerprint)
        if plan is None:
            raise InputError(
                f"{store.uri_of(PLAN_NAME)} is no plan for these sources and options: they have "
                "changed since it was made, or it was never made. Start the run again"
            )
        indices = range(share, len(plan.parts), num_shares)
        try:
            Workers(inputs, options).convert(plan, indices, store.uri)
        except MismatchError as mismatch:
            log.info("a sample of the rows does not tell all (%s): a new plan is needed", mismatch)
            return 0
    return len(indices)
