"""What can go wrong with an object store, by what the caller does next."""

from components.contracts.errors import InputError, PermanentError, RelayError, RetryableError


class ObjectNotFoundError(InputError):
    """The object does not exist."""


class AccessDeniedError(InputError):
    """The account may not do this; the message names the uri, the account, the permission."""


class AlreadyExistsError(RelayError):
    """A create-if-absent found an object of that name."""


class ConflictError(RelayError):
    """A compare-and-set found another generation than the expected one."""


class CorruptObjectError(PermanentError):
    """Stored bytes do not have the size or the CRC32C that was promised."""


class StoreUnavailableError(RetryableError):
    """The store did not answer properly until the deadline of the operation."""
