"""Where a command finds the keys that seal secrets at rest: the environment, a file, the home of a `duly up`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from duly.cli.console import note
from duly.cli.options import default_home
from duly.model.errors import InvalidInputError
from duly.service.keyring import KEYS_SETTING, NO_KEYRING, Keyring, new_key

FILE_NAME = "encryption.keys"
FILE_SETTING = "DULY_ENCRYPTION_KEYS_FILE"


def found_keyring(
    file: Path | None, no_encryption: bool, home: Path | None, environment: Mapping[str, str] = os.environ
) -> Keyring:
    """The keys as given, or those of a `duly up` in the home folder; none only where that was asked for.

    Raises InvalidInputError without keys, for keys that cannot be read, and for settings that contradict each other.
    """
    given = given_keyring(file, environment)
    if no_encryption:
        if given is not None:
            raise InvalidInputError(f"--no-encryption excludes encryption keys: leave out one of them ({KEYS_SETTING})")
        return NO_KEYRING
    if given is not None:
        return given
    path = (home or default_home()) / FILE_NAME
    if path.exists():
        return _read(path)
    raise NoKeysError(
        f"no encryption keys: give {KEYS_SETTING}, or --encryption-keys FILE (`duly keys encryption make` makes one), "
        f"or say --no-encryption (looked for {path})"
    )


def keyring_if_needed(file: Path | None, no_encryption: bool, home: Path | None) -> Keyring:
    """`found_keyring` for commands that hardly ever need one: without keys it complains when it is to seal."""
    try:
        return found_keyring(file, no_encryption, home)
    except NoKeysError as error:
        return _Wanting(error)


def given_keyring(file: Path | None, environment: Mapping[str, str] = os.environ) -> Keyring | None:
    """The keys of the environment or of a file; None if neither is given. Raises InvalidInputError."""
    text = environment.get(KEYS_SETTING, "")
    if text and file is not None:
        raise InvalidInputError(f"{KEYS_SETTING} and --encryption-keys ({FILE_SETTING}) are both given: leave one out")
    if text:
        return Keyring.parse(text)
    return None if file is None else _read(file)


def keyring_of_home(file: Path | None, home: Path, environment: Mapping[str, str] = os.environ) -> Keyring:
    """For `duly up`: the keys as given, or the home's own, made at the first start with mode 0600."""
    given = given_keyring(file, environment)
    if given is not None:
        return given
    path = home / FILE_NAME
    if not path.exists():
        _make(path)
        note(f"made an encryption key: {path} (without it nothing sealed can be read: keep it with your backups)")
    return _read(path)


class NoKeysError(InvalidInputError):
    """Neither keys nor --no-encryption were given."""


class _Wanting(Keyring):
    """Stands for the keys that were not given."""

    def __init__(self, error: NoKeysError) -> None:
        super().__init__()
        self._error = error

    @property
    def seals(self) -> bool:
        return True

    def seal(self, plain: bytes, place: bytes, key_id: str | None = None) -> bytes:
        raise self._error


def _read(path: Path) -> Keyring:
    try:
        return Keyring.parse(path.read_text("ascii"))
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else "it is not ASCII text"
        raise InvalidInputError(f"the encryption keys in {path} cannot be read: {why}") from error


def _make(path: Path) -> None:
    """The file is there whole or not at all; of two starts at once one makes it, and both read the same."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(f"{new_key()}\n")
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(aside, path)
    except OSError as error:
        raise InvalidInputError(f"cannot write {path} ({error.strerror or error})") from error
    finally:
        aside.unlink()
