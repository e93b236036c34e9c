"""The S3 protocol (s3://, and minio:// as Kubeflow Pipelines names its own store) on boto3."""

import base64
import functools
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
import urllib3
from botocore import exceptions
from botocore.config import Config

from components.contracts.errors import InputError
from components.storage.base import CRC_CHUNK_BYTES, ObjectStat, crc32c_of_bytes
from components.storage.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    ConflictError,
    ObjectNotFoundError,
)
from components.storage.remote import RangeFile, RemoteStore
from components.storage.retry import Deadlines, TransientError

MULTIPART_BYTES = 16 << 20
_CRC_METADATA = "relay-crc32c"
_PAGE_SIZE = 1000
# Where Kubeflow Pipelines' stock install serves its artifacts, and the keys of its secret.
MINIO_ENDPOINT = "http://minio-service.kubeflow:9000"
SECRET_FOLDER_VARIABLE = "RELAY_S3_SECRET_DIR"  # noqa: S105 - the name of the variable
SECRET_FOLDER = "/var/run/secrets/mlpipeline-minio-artifact"  # noqa: S105 - a folder

_PERMISSIONS = {
    "read": "s3:GetObject",
    "list": "s3:ListBucket",
    "write": "s3:PutObject",
    "delete": "s3:DeleteObject",
}
_TRANSIENT_CODES = frozenset(
    {"SlowDown", "RequestTimeout", "InternalError", "ServiceUnavailable", "Throttling"}
    | {"RequestTimeTooSkewed", "ExpiredToken", "NoSuchUpload", "BadDigest", "IncompleteBody"}
    | {"XAmzContentChecksumMismatch"}
)


class S3Store(RemoteStore):
    """Objects of one bucket under a prefix; preconditions are If-Match and If-None-Match.

    The generation is the ETag. The CRC32C of an object that this class wrote is in its metadata.
    """

    scheme = "s3"

    def __init__(self, scheme: str, bucket: str, prefix: str, deadlines: Deadlines) -> None:
        self.scheme = scheme
        super().__init__(bucket, prefix, deadlines)
        self._client = _client(os.getpid(), scheme)

    def _stat(self, key: str, name: str) -> ObjectStat | None:
        try:
            with self._explained(name, "read"):
                head = self._client.head_object(Bucket=self._bucket_name, Key=key)
        except ObjectNotFoundError:
            return None
        return _describe(name, head["ContentLength"], head)

    def _read(self, key: str, name: str) -> tuple[bytes, str]:
        with self._explained(name, "read"):
            answer = self._client.get_object(Bucket=self._bucket_name, Key=key)
            data = answer["Body"].read()
        if len(data) != answer["ContentLength"]:
            raise TransientError("the body ended too early")
        found = _describe(name, len(data), answer)
        if found.crc32c is not None and crc32c_of_bytes(data) != found.crc32c:
            raise TransientError("the bytes received do not have the CRC32C of the object")
        return data, found.generation

    def _write(self, key: str, name: str, data: bytes) -> ObjectStat:
        return self._put(key, name, data)

    def _write_if(self, key: str, name: str, data: bytes, expected: str) -> ObjectStat:
        condition = {"IfMatch": expected} if expected else {"IfNoneMatch": "*"}
        try:
            return self._put(key, name, data, **condition)
        except (_ConditionError, ObjectNotFoundError) as error:
            if expected:
                raise ConflictError(
                    f"{self.uri_of(name)} was changed by somebody else: ETag {expected} was "
                    "expected"
                ) from error
            raise AlreadyExistsError(f"{self.uri_of(name)} exists already") from error

    def _put(self, key: str, name: str, data: bytes, **condition: str) -> ObjectStat:
        crc = crc32c_of_bytes(data)
        with self._explained(name, "write"):
            answer = self._client.put_object(
                Bucket=self._bucket_name,
                Key=key,
                Body=data,
                ChecksumCRC32C=_encoded(crc),
                Metadata={_CRC_METADATA: f"{crc:08x}"},
                **condition,
            )
        return ObjectStat(
            name=name, size=len(data), generation=answer["ETag"], updated=0.0, crc32c=crc
        )

    def _upload(self, key: str, name: str, source: Path, crc32c: int) -> ObjectStat:
        size = source.stat().st_size
        if size <= MULTIPART_BYTES:
            return self._put(key, name, source.read_bytes())
        where = {"Bucket": self._bucket_name, "Key": key}
        with self._explained(name, "write"):
            upload = self._client.create_multipart_upload(
                **where, Metadata={_CRC_METADATA: f"{crc32c:08x}"}, ChecksumAlgorithm="CRC32C"
            )["UploadId"]
            try:
                parts = self._upload_parts(where, upload, source)
                answer = self._client.complete_multipart_upload(
                    **where, UploadId=upload, MultipartUpload={"Parts": parts}
                )
            except BaseException:
                self._client.abort_multipart_upload(**where, UploadId=upload)
                raise
        return ObjectStat(
            name=name, size=size, generation=answer["ETag"], updated=0.0, crc32c=crc32c
        )

    def _upload_parts(self, where: dict[str, str], upload: str, source: Path) -> list[Any]:
        parts = []
        with source.open("rb") as file:
            for number, data in enumerate(iter(lambda: file.read(MULTIPART_BYTES), b""), 1):
                checksum = _encoded(crc32c_of_bytes(data))
                answer = self._client.upload_part(
                    **where,
                    UploadId=upload,
                    PartNumber=number,
                    Body=data,
                    ChecksumCRC32C=checksum,
                )
                parts.append(
                    {"PartNumber": number, "ETag": answer["ETag"], "ChecksumCRC32C": checksum}
                )
        return parts

    def _fetch_range(
        self, key: str, name: str, found: ObjectStat, bounds: tuple[int, int], path: Path
    ) -> None:
        start, end = bounds
        target = RangeFile(path, start, end)
        try:
            with self._explained(name, "read"):
                answer = self._client.get_object(
                    Bucket=self._bucket_name,
                    Key=key,
                    Range=f"bytes={start}-{end - 1}",
                    IfMatch=found.generation,
                )
                for chunk in answer["Body"].iter_chunks(CRC_CHUNK_BYTES):
                    target.write(chunk)
            target.finish()
        except _ConditionError as error:
            raise ConflictError(
                f"{self.uri_of(name)} was replaced while it was downloaded"
            ) from error
        finally:
            target.close()

    def _page(self, prefix: str, root: str, token: str) -> tuple[Sequence[ObjectStat], str]:
        with self._explained(prefix.removeprefix(root), "list"):
            answer = self._client.list_objects_v2(
                Bucket=self._bucket_name,
                Prefix=prefix,
                MaxKeys=_PAGE_SIZE,
                **({"ContinuationToken": token} if token else {}),
            )
        if "IsTruncated" not in answer:  # an empty body is parsed to an empty listing
            raise TransientError("the listing ended too early")
        found = [
            _describe(entry["Key"].removeprefix(root), entry["Size"], entry)
            for entry in answer.get("Contents", [])
            if not entry["Key"].endswith("/")
        ]
        return found, answer.get("NextContinuationToken", "")

    def _delete(self, key: str, name: str) -> None:
        try:
            with self._explained(name, "delete"):
                self._client.delete_object(Bucket=self._bucket_name, Key=key)
        except ObjectNotFoundError:
            return

    @contextmanager
    def _explained(self, name: str, kind: str) -> Iterator[None]:
        """Turn the client's errors into ours: transient, or final with what must be done."""
        uri = self.uri_of(name)
        try:
            yield
        except exceptions.ClientError as error:
            raise _explained_answer(uri, kind, error) from error
        except exceptions.NoCredentialsError as error:
            raise AccessDeniedError(
                f"{uri}: no credentials were found: set AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY, or mount the secret mlpipeline-minio-artifact"
            ) from error
        except (
            *(exceptions.HTTPClientError, exceptions.ConnectionError, OSError),
            urllib3.exceptions.HTTPError,
        ) as error:
            raise TransientError(f"{type(error).__name__}: {str(error)[:200]}") from error
        except exceptions.BotoCoreError as error:
            raise TransientError(f"{type(error).__name__}: {str(error)[:200]}") from error


class _ConditionError(Exception):
    """If-Match or If-None-Match did not hold."""


def _explained_answer(uri: str, kind: str, error: exceptions.ClientError) -> Exception:
    code = str(error.response.get("Error", {}).get("Code", ""))
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    if status == 412 or code in ("PreconditionFailed", "ConditionalRequestConflict"):
        return _ConditionError(code)
    if code == "NoSuchBucket":
        return InputError(f"{uri}: the bucket does not exist")
    if status == 404 and code != "NoSuchUpload":
        return ObjectNotFoundError(f"no object at {uri}")
    if status >= 500 or status in (408, 410, 429) or code in _TRANSIENT_CODES:
        headers = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
        after = headers.get("retry-after", "")
        return TransientError(
            f"the server answered {status} {code}",
            retry_after=float(after) if after.isdigit() else 0.0,
        )
    if status in (401, 403):
        return AccessDeniedError(
            f"{uri}: the key in use lacks the permission {_PERMISSIONS[kind]} "
            f"(the server answered {status} {code})"
        )
    return InputError(f"{uri}: the server refuses the {kind}: {status} {code}")


@functools.lru_cache(maxsize=2)
def _client(pid: int, scheme: str) -> Any:
    """One client a process and scheme: its connections must not be shared across a fork."""
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    keys: dict[str, str] = {}
    if scheme == "minio":
        endpoint = endpoint or MINIO_ENDPOINT
    if not os.environ.get("AWS_ACCESS_KEY_ID"):
        keys = _keys_of_secret()
    return boto3.session.Session().client(
        "s3",
        endpoint_url=endpoint,
        region_name=os.environ.get("AWS_REGION")
        or os.environ.get("AWS_DEFAULT_REGION")
        or "us-east-1",
        config=Config(
            connect_timeout=5,
            read_timeout=20,
            retries={"total_max_attempts": 1},  # attempts are ours, see retry.py
            s3={"addressing_style": "path" if endpoint else "auto"},
            max_pool_connections=32,
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        ),
        **keys,
    )


def _keys_of_secret() -> dict[str, str]:
    """Keys from the mounted secret of Kubeflow Pipelines' own store, if there is one."""
    folder = Path(os.environ.get(SECRET_FOLDER_VARIABLE, SECRET_FOLDER))
    try:
        return {
            "aws_access_key_id": (folder / "accesskey").read_text(encoding="utf-8").strip(),
            "aws_secret_access_key": (folder / "secretkey").read_text(encoding="utf-8").strip(),
        }
    except OSError:
        return {}


def _describe(name: str, size: int, answer: dict[str, Any]) -> ObjectStat:
    crc = answer.get("Metadata", {}).get(_CRC_METADATA)
    return ObjectStat(
        name=name,
        size=int(size),
        generation=answer["ETag"],
        updated=answer["LastModified"].timestamp(),
        crc32c=int(crc, 16) if crc else None,
    )


def _encoded(crc32c: int) -> str:
    return base64.b64encode(crc32c.to_bytes(4, "big")).decode()
