"""Google Cloud Storage (gs://) on google-cloud-storage."""

import base64
import functools
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import requests
import urllib3
from google.api_core import exceptions
from google.auth import exceptions as auth_exceptions
from google.cloud import storage
from google.cloud.storage.retry import DEFAULT_RETRY

from components.contracts.errors import InputError
from components.storage.base import ObjectStat, crc32c_of_bytes
from components.storage.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    ConflictError,
    ObjectNotFoundError,
)
from components.storage.remote import RangeFile, RemoteStore
from components.storage.retry import Deadlines, TransientError

# (connect, between two reads) in seconds; the limit of an attempt holds beside them.
_TIMEOUT = (5, 20)
# Above this size an upload is resumable: a dropped connection costs one chunk.
RESUMABLE_BYTES = 8 << 20
_CHUNK_BYTES = 32 << 20
_PAGE_SIZE = 1000

_PERMISSIONS = {
    "read": "storage.objects.get",
    "list": "storage.objects.list",
    "write": "storage.objects.create and, to replace an object, storage.objects.delete",
    "delete": "storage.objects.delete",
}


class GcsStore(RemoteStore):
    """Objects of one bucket under a prefix; preconditions are generation matches."""

    scheme = "gs"

    def __init__(self, bucket: str, prefix: str, deadlines: Deadlines) -> None:
        super().__init__(bucket, prefix, deadlines)
        with _Explained(self, "", "read"):
            self._bucket = _client(os.getpid()).bucket(bucket)

    def _stat(self, key: str, name: str) -> ObjectStat | None:
        blob = self._bucket.blob(key)
        try:
            with _Explained(self, name, "read"):
                blob.reload(timeout=_TIMEOUT, retry=None)
        except ObjectNotFoundError:
            return None
        return _describe(blob, name)

    def _read(self, key: str, name: str) -> tuple[bytes, str]:
        with _Explained(self, name, "read"):
            blob = self._bucket.blob(key)
            blob.reload(timeout=_TIMEOUT, retry=None)
            generation, crc = blob.generation, blob.crc32c
            try:
                data = blob.download_as_bytes(
                    if_generation_match=generation,
                    checksum=None,
                    raw_download=True,
                    timeout=_TIMEOUT,
                    retry=None,
                )
            except (exceptions.PreconditionFailed, exceptions.NotFound) as error:
                raise TransientError("the object was replaced while it was read") from error
        if crc and crc32c_of_bytes(data) != _decoded_crc(crc):
            raise TransientError("the bytes received do not have the CRC32C of the object")
        return data, str(generation)

    def _write(self, key: str, name: str, data: bytes) -> ObjectStat:
        return self._put(key, name, data)

    def _write_if(self, key: str, name: str, data: bytes, expected: str) -> ObjectStat:
        try:
            return self._put(key, name, data, if_generation_match=int(expected or 0))
        except exceptions.PreconditionFailed as error:
            if expected:
                raise ConflictError(
                    f"{self.uri_of(name)} was changed by somebody else: generation {expected} was "
                    "expected"
                ) from error
            raise AlreadyExistsError(f"{self.uri_of(name)} exists already") from error

    def _put(self, key: str, name: str, data: bytes, **condition: int) -> ObjectStat:
        blob = self._bucket.blob(key)
        with _Explained(self, name, "write"):
            blob.upload_from_string(
                data,
                content_type="application/octet-stream",
                checksum=None,
                timeout=_TIMEOUT,
                retry=None,
                **condition,
            )
        return self._stored(blob, name, crc32c_of_bytes(data))

    def _upload(self, key: str, name: str, source: Path, crc32c: int) -> ObjectStat:
        size = source.stat().st_size
        resumable = size > RESUMABLE_BYTES
        blob = self._bucket.blob(key, chunk_size=_CHUNK_BYTES if resumable else None)
        with _Explained(self, name, "write"):
            blob.upload_from_filename(
                str(source),
                content_type="application/octet-stream",
                checksum=None,  # the server's is compared with ours below
                timeout=_TIMEOUT,
                # Chunks are retried by the client, which knows where the server has got to; a
                # session that is gone (410) is not, and the next attempt starts a new one.
                retry=DEFAULT_RETRY.with_timeout(60) if resumable else None,
            )
        return self._stored(blob, name, crc32c)

    def _stored(self, blob: Any, name: str, crc32c: int) -> ObjectStat:
        found = _describe(blob, name)
        if found.crc32c is not None and found.crc32c != crc32c:
            raise TransientError(
                f"stored with CRC32C {found.crc32c:08x}, sent were bytes with {crc32c:08x}"
            )
        return replace(found, crc32c=crc32c)

    def _fetch_range(
        self, key: str, name: str, found: ObjectStat, bounds: tuple[int, int], path: Path
    ) -> None:
        start, end = bounds
        target = RangeFile(path, start, end)
        try:
            with _Explained(self, name, "read"):
                try:
                    self._bucket.blob(key).download_to_file(
                        target,
                        start=start,
                        end=end - 1,
                        if_generation_match=int(found.generation),
                        raw_download=True,
                        checksum=None,
                        timeout=_TIMEOUT,
                        retry=None,
                    )
                except exceptions.PreconditionFailed as error:
                    raise ConflictError(
                        f"{self.uri_of(name)} was replaced while it was downloaded"
                    ) from error
            target.finish()
        finally:
            target.close()

    def _page(self, prefix: str, root: str, token: str) -> tuple[Sequence[ObjectStat], str]:
        with _Explained(self, prefix.removeprefix(root), "list"):
            iterator = self._bucket.client.list_blobs(
                self._bucket,
                prefix=prefix or None,
                page_token=token or None,
                page_size=_PAGE_SIZE,
                timeout=_TIMEOUT,
                retry=None,
            )
            page = next(iterator.pages, ())
            found = [_describe(blob, blob.name.removeprefix(root)) for blob in page]
            return found, iterator.next_page_token or ""

    def _delete(self, key: str, name: str) -> None:
        try:
            with _Explained(self, name, "delete"):
                self._bucket.blob(key).delete(timeout=_TIMEOUT, retry=None)
        except ObjectNotFoundError:
            return


class _Explained:
    """Turns the client's errors into ours: transient, or final with what must be done."""

    def __init__(self, store: GcsStore, name: str, kind: str) -> None:
        self._store, self._name, self._kind = store, name, kind

    def __enter__(self) -> None:
        """Nothing to set up."""

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if error is None or isinstance(error, TransientError | exceptions.PreconditionFailed):
            return
        uri = self._store.uri_of(self._name)
        if isinstance(error, exceptions.NotFound):
            # An object that is not there cannot be what a write or a listing misses.
            if self._kind in ("write", "list") or "bucket does not exist" in str(error):
                raise InputError(f"{uri}: the bucket does not exist: {error.message}") from error
            raise ObjectNotFoundError(f"no object at {uri}") from error
        if isinstance(error, exceptions.Forbidden | exceptions.Unauthorized):
            raise AccessDeniedError(
                f"{uri}: {_account()} lacks the permission {_PERMISSIONS[self._kind]}. "
                f"The server said: {error.message}"
            ) from error
        if isinstance(
            error, auth_exceptions.DefaultCredentialsError | auth_exceptions.InvalidOperation
        ):
            raise AccessDeniedError(
                f"{uri}: the permission {_PERMISSIONS[self._kind]} is needed, and there are no "
                f"credentials that could have it: {error}"
            ) from error
        transient = (
            *(exceptions.ServerError, exceptions.TooManyRequests),
            *(requests.RequestException, auth_exceptions.TransportError, ConnectionError),
            *(auth_exceptions.RefreshError, urllib3.exceptions.HTTPError, TimeoutError),
        )
        if isinstance(error, transient) or _status_of(error) in (408, 410, 429, 499):
            raise TransientError(_brief(error), retry_after=_retry_after(error)) from error
        if isinstance(error, exceptions.RetryError):
            raise TransientError(_brief(error.cause or error)) from error
        if "checksum" in type(error).__name__.lower() or "DataCorruption" in type(error).__name__:
            raise TransientError("the bytes were damaged on the way") from error


@functools.lru_cache(maxsize=1)
def _client(pid: int) -> Any:
    """One client a process: its connections must not be shared across a fork."""
    return storage.Client(
        project=os.environ.get("GOOGLE_CLOUD_PROJECT") or None,
    )


def _account() -> str:
    credentials = _client(os.getpid())._credentials
    return str(getattr(credentials, "service_account_email", "") or "the account in use")


def _describe(blob: Any, name: str) -> ObjectStat:
    return ObjectStat(
        name=name,
        size=int(blob.size or 0),
        generation=str(blob.generation),
        updated=blob.updated.timestamp() if blob.updated else 0.0,
        crc32c=_decoded_crc(blob.crc32c) if blob.crc32c else None,
    )


def _decoded_crc(text: str) -> int:
    return int.from_bytes(base64.b64decode(text), "big")


def _status_of(error: BaseException) -> int:
    return int(getattr(error, "code", 0) or 0)


def _retry_after(error: BaseException) -> float:
    response = getattr(error, "response", None)
    text = response.headers.get("Retry-After", "") if response is not None else ""
    return float(text) if text.isdigit() else 0.0


def _brief(error: BaseException) -> str:
    """One line of an error: no headers, in which a token could stand."""
    return f"{type(error).__name__}: {str(error).splitlines()[0][:200] if str(error) else ''}"
