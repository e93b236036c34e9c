"""Inputs of a saved signature named like the columns, whatever characters these have.

TensorFlow makes Python identifiers of a signature's inputs ("dep. hour" becomes "dep__hour"), and
then finds no input of the name that it was given. Columns with such names are traced under another
one, and the saved file is told the columns' own names afterwards: in the SignatureDef, which
servers read, and in the object graph, from which tf.saved_model.load makes its functions.
"""

import keyword
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from tensorflow.core.protobuf import saved_model_pb2
from tensorflow.python.saved_model import fingerprinting_utils  # the file's fingerprint is no API

from components.contracts.published_model import GRAPH_NAME

# Names of parameters that the call of the traced function has itself.
_TAKEN = frozenset({"self", "args", "kwargs"})


def traced_names(columns: Sequence[str]) -> dict[str, str]:
    """Name while tracing to the column's name."""
    same = Counter(column.lower() for column in columns)
    return {
        column if _is_plain(column) and same[column.lower()] == 1 else f"column_{index}_": column
        for index, column in enumerate(columns)
    }


def name_inputs(folder: Path, signature: str, names: Mapping[str, str]) -> None:
    """Rename a signature's inputs in the SavedModel in `folder`, from traced to column names."""
    if all(traced == column for traced, column in names.items()):
        return
    path = folder / GRAPH_NAME
    saved = saved_model_pb2.SavedModel()
    saved.ParseFromString(path.read_bytes())
    (graph,) = saved.meta_graphs
    inputs = graph.signature_def[signature].inputs
    for traced, column in names.items():
        if traced != column:
            inputs[column].CopyFrom(inputs[traced])
            del inputs[traced]
    for node in graph.object_graph_def.nodes:
        keywords = node.bare_concrete_function.argument_keywords
        if set(keywords) == set(names):
            keywords[:] = [names[name] for name in keywords]
    path.write_bytes(saved.SerializeToString(deterministic=True))
    fingerprinting_utils.write_fingerprint(str(folder))


def _is_plain(column: str) -> bool:
    return (
        column.isascii()
        and column.isidentifier()
        and not column.startswith("_")
        and not keyword.iskeyword(column)
        and column not in _TAKEN
    )
