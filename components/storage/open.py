"""From a uri to the store that keeps it."""

from pathlib import Path
from urllib.parse import unquote

from components.contracts.errors import InputError
from components.storage.base import Store
from components.storage.local import LocalStore
from components.storage.retry import Deadlines

SCHEMES = "a local directory, file://, gs://, s3://, minio://"


def open_store(uri: str, *, deadlines: Deadlines | None = None) -> Store:
    """Open the store rooted at `uri`.

    Args:
        uri: a directory, or a uri with one of SCHEMES. Characters stand for themselves (no percent
            escapes) but in file:// uris, which are escaped as RFC 8089 says.
        deadlines: of operations over a network.

    Raises:
        InputError: the uri is empty, or its scheme has no store.
    """
    if not uri.strip():
        raise InputError(
            "a storage uri is empty. Give a directory, for example storage_root=/data/relay"
        )
    scheme, separator, rest = uri.partition("://")
    if not separator:
        return LocalStore(Path(uri))
    if scheme == "file":
        return LocalStore(Path(unquote("/" + rest.partition("/")[2])))
    bucket, _, prefix = rest.partition("/")
    limits = deadlines or Deadlines()
    # Imported where they are used: a step on local files needs neither client.
    if scheme == "gs":
        from components.storage.gcs import GcsStore

        return GcsStore(bucket, prefix.strip("/"), limits)
    if scheme in ("s3", "minio"):
        from components.storage.s3 import S3Store

        return S3Store(scheme, bucket, prefix.strip("/"), limits)
    raise InputError(
        f"{uri}: there is no store for the scheme {scheme}://. Stores: {SCHEMES}. "
        "Set the parameter storage_root (or the pipeline root) to a uri of one of these"
    )


def join_uri(uri: str, *parts: str) -> str:
    """Append `/`-separated parts to a uri, whatever its scheme."""
    return "/".join([uri.rstrip("/"), *(part.strip("/") for part in parts)])
