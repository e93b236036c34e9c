"""Text to typed values, with every value that does not convert known by its row."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from components.make_tfrecords.treatment import is_text

# Texts whose spelling would be lost if they were read as numbers: postal codes, hexadecimal.
_HIDDEN_TEXT = r"^-?0([0-9]+$|[xX])"
TRUE, FALSE = ("true", "True", "TRUE"), ("false", "False", "FALSE")


def convert_text(
    text: pa.Array, target: pa.DataType, missing_tokens: Sequence[str]
) -> tuple[pa.Array, np.ndarray[Any, Any]]:
    """Convert binary text to a type.

    Return the array and the mask of values that do not convert (null there).
    """
    distinct = text.dictionary_encode()
    words = distinct.dictionary
    arrays, wrong = [], []
    tokens = {token.encode() for token in missing_tokens}
    try:
        values = _convert_words(words, target, tokens)
        bad_words = np.zeros(len(words), bool)
    except pa.ArrowInvalid:
        for word in words:
            value, is_wrong = _convert_word(word.as_py(), target, tokens)
            arrays.append(value)
            wrong.append(is_wrong)
        values = pa.concat_arrays(arrays) if arrays else pa.array([], target)
        bad_words = np.array(wrong, bool)
    indices = distinct.indices
    return values.take(indices), bad_words[indices.to_numpy()]


def converted(
    words: pa.Array, target: pa.DataType, missing_tokens: Sequence[str]
) -> pa.Array | None:
    """Convert binary text to a type, or return None if a value does not convert."""
    try:
        return _convert_words(words, target, {token.encode() for token in missing_tokens})
    except pa.ArrowInvalid:
        return None


def _convert_words(words: pa.Array, target: pa.DataType, tokens: set[bytes]) -> pa.Array:
    words = pc.if_else(pc.is_in(words, pa.array(list(tokens), pa.binary())), None, words)
    if is_text(target):
        return pc.cast(words, target)
    texts = pc.utf8_trim(pc.cast(words, pa.string()), " \t")
    if pa.types.is_boolean(target):
        return _to_boolean(texts)
    if pa.types.is_integer(target) or pa.types.is_floating(target):
        if pc.any(pc.match_substring_regex(texts, _HIDDEN_TEXT)).as_py():
            raise pa.ArrowInvalid("leading zeros or hexadecimal")
    values = pc.cast(texts, target)
    if pa.types.is_floating(target):
        _check_no_overflow(texts, values)
    return values


def _convert_word(word: bytes, target: pa.DataType, tokens: set[bytes]) -> tuple[pa.Array, bool]:
    try:
        return _convert_words(pa.array([word], pa.binary()), target, tokens), False
    except pa.ArrowInvalid:
        return pa.nulls(1, target), True


def _to_boolean(texts: pa.Array) -> pa.Array:
    known = pc.is_in(texts, pa.array([*TRUE, *FALSE]))
    if not pc.all(pc.or_(known, texts.is_null())).as_py():
        raise pa.ArrowInvalid("no boolean")
    is_true = pc.is_in(texts, pa.array(TRUE))
    return pc.if_else(texts.is_null(), pa.scalar(None, pa.bool_()), is_true)


def _check_no_overflow(texts: pa.Array, values: pa.Array) -> None:
    """Refuse texts like 1e400, which pyarrow turns into infinity."""
    infinite = texts.filter(pc.fill_null(pc.is_inf(values), False))
    if any("inf" not in text.lower() for text in infinite.to_pylist()):
        raise pa.ArrowInvalid("too large")
