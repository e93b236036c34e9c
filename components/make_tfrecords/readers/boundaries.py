"""Where CSV records end.

A quoted field may hold line ends, so only a scan from a record's start can tell.

The states follow pyarrow's own CSV parser: a quote opens a quoted field only at the field's start,
two quotes within one stand for one, and what follows a closing quote is unquoted.
"""

from typing import Any

import numpy as np
from numba import njit

FIELD_START = 0
IN_FIELD = 1
IN_QUOTES = 2
AFTER_QUOTE = 3

_QUOTE = 34
_LINE_FEED = 10
_ZERO = 48
_CARRIAGE_RETURN = 13


@njit(cache=True, nogil=True)
def scan_records(
    data: np.ndarray[Any, Any], state: int, delimiter: int, target: int
) -> tuple[int, int, int, int]:
    """Follow the records in a piece of a CSV file.

    Args:
        data: bytes, shape [n].
        state: at the first byte; `FIELD_START` at the start of a record.
        delimiter: byte between fields.
        target: position whose first record end from there on is wanted.

    Returns:
        State past the last byte; position past the first line feed at or after `target` that ends a
        record, and past the last one of all (-1 where there is none); number of records that end.
    """
    first_end, last_end, num_ends = -1, -1, 0
    for position in range(data.size):
        byte = data[position]
        if state == IN_QUOTES:
            if byte == _QUOTE:
                state = AFTER_QUOTE
        elif byte == _QUOTE and state != IN_FIELD:
            state = IN_QUOTES
        elif byte == delimiter or byte == _CARRIAGE_RETURN:
            state = FIELD_START
        elif byte == _LINE_FEED:
            state = FIELD_START
            num_ends += 1
            last_end = position + 1
            if first_end < 0 and position >= target:
                first_end = position + 1
        else:
            state = IN_FIELD
    return state, first_end, last_end, num_ends


@njit(cache=True, nogil=True)
def has_leading_zero(data: np.ndarray[Any, Any], delimiter: int) -> bool:
    """Whether a field of a piece of a CSV file is an integer with a leading zero, or hexadecimal.

    It may say so for what is none (inside quotes), never the other way round.
    """
    for position in range(data.size - 1):
        if data[position] != _ZERO:
            continue
        following = data[position + 1]
        is_hexadecimal = following == 120 or following == 88  # x, X
        if not is_hexadecimal and not 48 <= following <= 57:
            continue
        before = data[position - 1] if position else _LINE_FEED
        if before == 45 and position:  # minus
            before = data[position - 2] if position > 1 else _LINE_FEED
        if before != delimiter and before != _LINE_FEED and before not in (_QUOTE, 32, 9, 13):
            continue
        end = position + 2
        while end < data.size and 48 <= data[end] <= 57:
            end += 1
        if is_hexadecimal or end == data.size:
            return True
        if data[end] == delimiter or data[end] in (_QUOTE, 32, 9, 10, 13):
            return True
    return False
