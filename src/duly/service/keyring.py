"""Secrets at rest: a ring of 256-bit keys. The first seals, every one opens, so a new key takes over without a gap.

AES-256-GCM-SIV (RFC 8452; `cryptography.hazmat.primitives.ciphers.aead.AESGCMSIV`, there since version 42 with OpenSSL
3.2 or newer, which its wheels bring along). Not plain GCM: sealing must be deterministic, because a repeated create is
told from a different one by comparing what is stored, and GCM gives its key away when a nonce comes twice. In SIV mode
a repeated nonce reveals one thing, that the same text was sealed twice in the same place (RFC 8452, section 9). The
nonce is a hash of the place, so every place has its own derived keys as well.

An envelope: b"duly", the version 0x01, the length of the key's id, the id, a check of the key (4 octets), the nonce
(12), ciphertext and tag. The check tells a wrong key under a right id, which is a mistake of the operator's and to be
waited out, from bytes that were changed.
The place (whose, what, where to) is associated data: an envelope that is moved elsewhere does not open.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import secrets
from collections.abc import Iterable
from typing import Final
from uuid import UUID

from cryptography.exceptions import InvalidTag, UnsupportedAlgorithm
from cryptography.hazmat.primitives.ciphers.aead import AESGCMSIV

from duly.model.errors import DulyError, InvalidInputError

KEYS_SETTING = "DULY_ENCRYPTION_KEYS"
KEY_BYTES = 32

_MAGIC = b"duly\x01"
_NEVER_EMPTY = b"\0"
"""In front of every text: with OpenSSL before 3.5 `cryptography` refuses an empty one (pyca/cryptography#10808)."""
_CHECK_BYTES = 4
_NONCE_BYTES = 12
_TAG_BYTES = 16
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}", re.ASCII)


class SealedError(DulyError):
    """Something at rest cannot be opened here. `key_id`: the key that it names."""

    def __init__(self, message: str, key_id: str) -> None:
        super().__init__(message)
        self.key_id = key_id


class KeyMissingError(SealedError):
    """The key is not in this process's ring. It may be tomorrow: nothing is lost."""

    def __init__(self, key_id: str) -> None:
        super().__init__(f"encryption key {key_id} is missing: add it to {KEYS_SETTING}, behind the first", key_id)


class KeyWrongError(KeyMissingError):
    """The ring has another key under the id of the one that sealed."""

    def __init__(self, key_id: str) -> None:
        super().__init__(key_id)
        self.args = (f"encryption key {key_id} is not the key that sealed this: correct it in {KEYS_SETTING}",)


class TamperedError(SealedError):
    """The key is there, and what it should open was changed or comes from another place."""

    def __init__(self, key_id: str) -> None:
        super().__init__("what is stored cannot be decrypted: it was changed, or moved here from elsewhere", key_id)


class Keyring:
    """The keys of one process, the one that seals first. A ring without keys seals nothing: `seals` is False."""

    __slots__ = ("_checks", "_keys", "first")

    def __init__(self, keys: Iterable[tuple[str, bytes]] = ()) -> None:
        self._keys: dict[str, AESGCMSIV] = {}
        self._checks: dict[str, bytes] = {}
        for key_id, key in keys:
            if not _ID.fullmatch(key_id):
                raise InvalidInputError(f"{KEYS_SETTING}: a key's id is 1 to 32 letters, digits, - and _")
            if key_id in self._keys:
                raise InvalidInputError(f"{KEYS_SETTING}: there are two keys with the id {key_id}")
            if len(key) != KEY_BYTES:
                raise InvalidInputError(f"{KEYS_SETTING}: key {key_id} has {len(key)} bytes: it must have {KEY_BYTES}")
            self._keys[key_id] = _cipher(key)
            self._checks[key_id] = hashlib.sha256(b"duly key check" + key).digest()[:_CHECK_BYTES]
        self.first: str | None = next(iter(self._keys), None)

    @classmethod
    def parse(cls, text: str) -> Keyring:
        """Read `id:base64` entries, separated by commas or white space; a line may be a comment with #.

        Raises InvalidInputError, which never repeats a key; an empty text is refused too.
        """
        lines = (line.partition("#")[0] for line in text.splitlines())
        entries = [entry for line in lines for entry in re.split(r"[\s,]+", line) if entry]
        if not entries:
            raise InvalidInputError(f"{KEYS_SETTING}: there is no key: make one with `duly keys encryption make`")
        return cls(_entry(entry, place) for place, entry in enumerate(entries, 1))

    @property
    def seals(self) -> bool:
        return self.first is not None

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids, the one that seals first."""
        return tuple(self._keys)

    def seal(self, plain: bytes, place: bytes, key_id: str | None = None) -> bytes:
        """Seal for one place, with the first key or the one named; the same every time. KeyMissingError without it."""
        name = key_id or self.first or ""
        cipher = self._keys.get(name)
        if cipher is None:
            raise KeyMissingError(name)
        nonce = hashlib.sha256(place).digest()[:_NONCE_BYTES]
        head = _MAGIC + bytes((len(name),)) + name.encode("ascii") + self._checks[name]
        return head + nonce + cipher.encrypt(nonce, _NEVER_EMPTY + plain, head + place)

    def open(self, envelope: bytes, place: bytes) -> bytes:
        """What was sealed for this place. Raises KeyMissingError (also for a wrong key) or TamperedError."""
        name = sealed_with(envelope)
        if name is None:
            raise TamperedError("?")
        cipher = self._keys.get(name)
        if cipher is None:
            raise KeyMissingError(name)
        at = len(_MAGIC) + 1 + len(name)
        end = at + _CHECK_BYTES
        if envelope[at:end] != self._checks[name]:
            raise KeyWrongError(name)
        nonce, sealed = envelope[end : end + _NONCE_BYTES], envelope[end + _NONCE_BYTES :]
        try:
            return cipher.decrypt(nonce, sealed, envelope[:end] + place)[len(_NEVER_EMPTY) :]
        except InvalidTag:
            raise TamperedError(name) from None

    def __repr__(self) -> str:
        return f"Keyring({', '.join(self._keys)})"


NO_KEYRING: Final = Keyring()
"""Seals nothing, opens nothing that is sealed: for tests, and for operators who said --no-encryption."""


def place_of(what: str, row: UUID, project_id: int, target: str = "") -> bytes:
    """The place of one value: the kind of value, the row, whose it is, and for a request where it goes."""
    return b"\0".join((what.encode(), row.bytes, project_id.to_bytes(8, "big"), target.encode()))


def sealed_with(envelope: bytes) -> str | None:
    """The id of the key that an envelope names; None if it is none."""
    start = len(_MAGIC) + 1
    if not envelope.startswith(_MAGIC) or len(envelope) < start:
        return None
    end = start + envelope[start - 1]
    name = envelope[start:end].decode("ascii", "replace")
    whole = len(envelope) >= end + _CHECK_BYTES + _NONCE_BYTES + _TAG_BYTES
    return name if whole and _ID.fullmatch(name) else None


def new_key() -> str:
    """A fresh key as an entry of the setting. Its id is a hash of it: two keys have two ids."""
    key = secrets.token_bytes(KEY_BYTES)
    return f"{hashlib.sha256(b'duly key id' + key).hexdigest()[:8]}:{base64.b64encode(key).decode('ascii')}"


def _entry(entry: str, place: int) -> tuple[str, bytes]:
    key_id, colon, text = entry.partition(":")
    try:
        if not colon:
            raise ValueError
        return key_id, base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidInputError(f"{KEYS_SETTING}: entry {place} is not an id, a colon and base64") from None


def _cipher(key: bytes) -> AESGCMSIV:
    try:
        return AESGCMSIV(key)
    except UnsupportedAlgorithm as error:
        raise InvalidInputError(
            "this build of the package cryptography has no AES-GCM-SIV (OpenSSL older than 3.2): install its wheel"
        ) from error
