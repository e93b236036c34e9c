"""From a uri to the store that keeps it."""

from pathlib import Path
from urllib.parse import unquote, urlsplit

from components.contracts.errors import InputError
from components.storage.base import Store
from components.storage.local import LocalStore


def open_store(uri: str) -> Store:
    """Open the store rooted at `uri`: a directory, with or without `file://`.

    Raises:
        InputError: the uri is empty, or its scheme has no store.
    """
    if not uri.strip():
        raise InputError(
            "a storage uri is empty. Give a directory, for example storage_root=/data/relay"
        )
    scheme, separator, _ = uri.partition("://")
    if not separator:
        return LocalStore(Path(uri))
    if scheme == "file":
        return LocalStore(Path(unquote(urlsplit(uri).path)))
    raise InputError(
        f"{uri}: there is no store for the scheme {scheme}://. Stores: a local directory, file://. "
        "Set the parameter storage_root (or the pipeline root) to a uri of one of these"
    )


def join_uri(uri: str, *parts: str) -> str:
    """Append `/`-separated parts to a uri, whatever its scheme."""
    return "/".join([uri.rstrip("/"), *(part.strip("/") for part in parts)])
