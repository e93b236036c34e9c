"""The user's model module: what it must offer, and how it is loaded and checked.

Agreed between train_model, evaluate_model and export_model, which all build the same model from the
same module.
"""

import importlib
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from components.contracts.dataset import Schema
from components.contracts.errors import InputError, PermanentError

Preprocess = Callable[[dict[str, Any]], Any]


class ModelModule(Protocol):
    """A module that users write, named by its dotted path (`examples.flights.model`).

    `build_model` returns a compiled keras.Model. Its inputs are what `preprocess` returns; its
    outputs are probabilities for classification (shape [batch, 1] after a sigmoid for binary,
    [batch, classes] after a softmax for multi-class) and values of shape [batch, 1] for regression.

    A module may also define `preprocess(schema)`, returning a function (best a keras.Layer or
    tf.Module, so that its tables are saved with it) from a batch of raw columns, {column: tensor of
    shape [batch, ...]}, without the label, to the model's input. Without it,
    `components.contracts.preprocessing` makes one from the schema. It runs inside tf.data during
    training and inside the exported signature when serving.
    """

    def build_model(self, schema: Schema, hyperparameters: Mapping[str, Any]) -> Any:
        """Build and compile the model for the columns of `schema`."""


@dataclass(frozen=True, kw_only=True)
class UserModel:
    """A loaded and checked model module."""

    path: str
    build_model: Callable[[Schema, Mapping[str, Any]], Any]
    preprocess: Callable[[Schema], Preprocess] | None

    def build(self, schema: Schema, hyperparameters: Mapping[str, Any]) -> Any:
        """Call the user's `build_model` and check that it returns a compiled keras.Model.

        Raises:
            PermanentError: user code failed; the user's own traceback is printed before.
            InputError: it returned something else than a compiled keras.Model.
        """
        import keras

        try:
            model = self.build_model(schema, hyperparameters)
        except Exception as error:
            traceback.print_exception(error)
            raise PermanentError(
                f"{self.path}.build_model failed: {type(error).__name__}: {error}"
            ) from error
        if not isinstance(model, keras.Model):
            raise InputError(
                f"{self.path}.build_model returned a {type(model).__name__}, expected a keras.Model"
            )
        if not model.compiled:
            raise InputError(
                f"{self.path}.build_model returned a model that is not compiled: "
                "call model.compile(optimizer=..., loss=..., metrics=[...]) before returning it"
            )
        return model

    def preprocessing(self, schema: Schema) -> Preprocess:
        """The user's preprocessing for `schema`, or the default. Raises PermanentError."""
        from components.contracts.preprocessing import DefaultPreprocessing, build_eagerly

        if self.preprocess is None:
            return DefaultPreprocessing(schema)
        try:
            preprocess = self.preprocess(schema)
            build_eagerly(preprocess, schema)
            return preprocess
        except Exception as error:
            traceback.print_exception(error)
            raise PermanentError(
                f"{self.path}.preprocess failed: {type(error).__name__}: {error}"
            ) from error


def load_user_model(path: str) -> UserModel:
    """Import the module with the dotted path `path` and check what it offers. Builds nothing.

    Raises:
        InputError: no such module, it fails to import, or it lacks a callable `build_model(schema,
            hyperparameters)`.
    """
    if not path or any(not part.isidentifier() for part in path.split(".")):
        raise InputError(
            f"model module {path!r} is not a dotted Python path. Expected something like "
            "'examples.flights.model' "
            "(no slashes, no .py)"
        )
    try:
        module = importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name and (path == error.name or path.startswith(error.name + ".")):
            raise InputError(
                f"there is no model module {path!r}: {error.name!r} is not on the Python path "
                f"({', '.join(entry or '.' for entry in sys.path[:3])}, ...). In a container, add "
                "it to the training image"
            ) from error
        raise InputError(
            f"model module {path!r} imports {error.name!r}, which is not installed here"
        ) from error
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        raise InputError(
            f"model module {path!r} fails to import: {type(error).__name__}: {error} "
            f"({place.filename}:{place.lineno})"
        ) from error
    build_model = getattr(module, "build_model", None)
    preprocess = getattr(module, "preprocess", None)
    _check_callable(module, "build_model", build_model, ("schema", "hyperparameters"))
    if preprocess is not None:
        _check_callable(module, "preprocess", preprocess, ("schema",))
    assert build_model is not None  # noqa: S101 - checked above, for the type checker
    return UserModel(path=path, build_model=build_model, preprocess=preprocess)


def _check_callable(module: Any, name: str, function: Any, arguments: tuple[str, ...]) -> None:
    expected = f"{name}({', '.join(arguments)})"
    place = f"model module {module.__name__!r} ({module.__file__})"
    if function is None:
        raise InputError(f"{place} has no function {expected}; it must define one")
    if not callable(function):
        raise InputError(
            f"{place}: {name} is a {type(function).__name__}, expected a function {expected}"
        )
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError as error:
        raise InputError(f"{place}: {name} cannot be called as {expected}: {error}") from error
