"""What the driver raises, in our words: the database is away, or busy, or has rolled a statement back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import asyncpg

from duly.model.errors import DatabaseBusyError, DatabaseUnavailableError, LeaseLostError

ROLLED_BACK = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError)
"""A rival won, and nothing of the transaction is left: it may be run again at once, by whoever knows all of it."""

REFUSED_AT_THE_DOOR = (
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
    asyncpg.InsufficientPrivilegeError,  # no right to connect
    ValueError,
)
"""Raised by a connect: the address, the name or the password is wrong."""

FULL_OR_STARTING = (asyncpg.TooManyConnectionsError, asyncpg.CannotConnectNowError)
"""Raised by a connect: the server is there, and will have room in a moment."""

_BUSY = (
    asyncpg.QueryCanceledError,  # by statement_timeout
    asyncpg.LockNotAvailableError,  # by lock_timeout
)
_AWAY = (
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,  # admin_shutdown, crash_shutdown, cannot_connect_now
    asyncpg.InsufficientResourcesError,  # too_many_connections, out_of_memory, disk_full
    asyncpg.ReadOnlySQLTransactionError,  # a standby, or a primary that was demoted
    asyncpg.IdleInTransactionSessionTimeoutError,  # the server has closed the connection
    asyncpg.ObjectNotInPrerequisiteStateError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
    TimeoutError,
)


@contextmanager
def our_errors() -> Iterator[None]:
    """Map what the driver raises to what callers of the queue handle. ROLLED_BACK and faults of the statement itself
    pass as they are.
    """
    try:
        yield
    except _BUSY as error:
        raise busy(error) from error
    except _AWAY as error:
        raise unavailable(error) from error
    except asyncpg.PostgresError as error:
        if error.sqlstate == "DU001":
            raise LeaseLostError(str(error)) from error
        raise


def busy(error: BaseException) -> DatabaseBusyError:
    return DatabaseBusyError(f"the database is busy: {_what(error)}")


def unavailable(error: BaseException) -> DatabaseUnavailableError:
    return DatabaseUnavailableError(f"the database is not available: {_what(error)}")


def _what(error: BaseException) -> str:
    if isinstance(error, TimeoutError) and not str(error):
        return "no answer in time"
    return str(error) or type(error).__name__
