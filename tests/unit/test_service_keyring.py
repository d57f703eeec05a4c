"""The keyring: what is sealed opens in its place and nowhere else, with any key, and is the same each time."""

from __future__ import annotations

import base64

import pytest

from duly.model import uuid7
from duly.model.errors import InvalidInputError
from duly.service.keyring import (
    NO_KEYRING,
    KeyMissingError,
    Keyring,
    KeyWrongError,
    SealedError,
    TamperedError,
    new_key,
    place_of,
    sealed_with,
)

JOB = uuid7()
PLACE = place_of("body", JOB, 1, "https://example.com/")


def test_what_is_sealed_opens_and_is_the_same_each_time() -> None:
    """Also nothing at all; the text is not in the envelope, which names its key."""
    ring = Keyring.parse(new_key())
    for plain in (b"", b"secret words", bytes(100_000)):
        envelope = ring.seal(plain, PLACE)
        assert ring.seal(plain, PLACE) == envelope
        assert ring.open(envelope, PLACE) == plain
        assert not plain or plain not in envelope
        assert sealed_with(envelope) == ring.first


@pytest.mark.parametrize(
    "other",
    [
        place_of("headers", JOB, 1, "https://example.com/"),
        place_of("body", uuid7(), 1, "https://example.com/"),
        place_of("body", JOB, 2, "https://example.com/"),
        place_of("body", JOB, 1, "https://attacker.example/"),
    ],
    ids=["field", "job", "project", "target"],
)
def test_an_envelope_opens_in_its_place_only(other: bytes) -> None:
    """Another field, job, project or target: it was moved. And equal texts look different in different places."""
    ring = Keyring.parse(new_key())
    with pytest.raises(TamperedError):
        ring.open(ring.seal(b"secret", PLACE), other)
    assert ring.seal(b"secret", PLACE)[-22:] != ring.seal(b"secret", other)[-22:]


def test_a_changed_envelope_does_not_open() -> None:
    """Whichever bit is changed, and wherever it is cut: refused, never another text and no other exception."""
    ring = Keyring.parse(new_key())
    envelope = ring.seal(b"secret", PLACE)
    for at in range(len(envelope)):
        changed = bytearray(envelope)
        changed[at] ^= 1
        with pytest.raises(SealedError):
            ring.open(bytes(changed), PLACE)
        with pytest.raises(SealedError):
            ring.open(envelope[:at], PLACE)


def test_keys_change_over_with_an_overlap() -> None:
    """The first key seals, the others open; without the old key what it sealed says which key is missing."""
    old, new = new_key(), new_key()
    before, during, after = Keyring.parse(old), Keyring.parse(f"{new}\n{old}"), Keyring.parse(new)
    sealed_before, sealed_during = before.seal(b"secret", PLACE), during.seal(b"secret", PLACE)
    assert during.open(sealed_before, PLACE) == during.open(sealed_during, PLACE) == b"secret"
    assert after.open(sealed_during, PLACE) == b"secret"
    assert during.seal(b"secret", PLACE, before.first) == sealed_before  # as a repeat of an old create needs it
    with pytest.raises(KeyMissingError, match=f"encryption key {before.first} is missing"):
        after.open(sealed_before, PLACE)
    with pytest.raises(KeyMissingError):
        NO_KEYRING.open(sealed_before, PLACE)
    with pytest.raises(KeyMissingError):
        NO_KEYRING.seal(b"secret", PLACE)


def test_the_same_id_with_another_key_opens_nothing() -> None:
    """A mistake of the operator's, which can be mended: not tampered, and not garbage."""
    one, other = (Keyring([("k", bytes([n]) * 32)]) for n in (1, 2))
    with pytest.raises(KeyWrongError):
        other.open(one.seal(b"secret", PLACE), PLACE)


def test_a_secret_in_the_clear_is_no_envelope() -> None:
    """32 bytes are shorter than any envelope, whatever they begin with."""
    assert sealed_with(b"duly\x01\x01a" + bytes(25)) is None
    assert len(Keyring([("k", bytes(32))]).seal(b"", PLACE)) > 32


GOOD = base64.b64encode(b"\x07" * 32).decode()


@pytest.mark.parametrize(
    "text",
    [
        "", " \n# only a comment\n", GOOD, f":{GOOD}", f"k {GOOD}", f"k:{GOOD[:-4]}", f"k:{GOOD}{GOOD}",
        f"k:{GOOD[:-1]}", f"k:{GOOD},k:{GOOD}", f"ключ:{GOOD}", f"{'k' * 33}:{GOOD}", f"-k:{GOOD}", f"k:{GOOD[:-2]}~=",
    ],
)  # fmt: skip
def test_bad_settings_are_refused_without_repeating_them(text: str) -> None:
    """The message names the setting, and holds no part of a key."""
    with pytest.raises(InvalidInputError, match="DULY_ENCRYPTION_KEYS") as refused:
        Keyring.parse(text)
    assert "BwcH" not in str(refused.value)


def test_settings_are_read() -> None:
    """Commas, spaces, lines, comments; the order is kept, and a ring shows ids only."""
    ring = Keyring.parse(f"# new\nb:{GOOD},a:{GOOD}\n c-2:{GOOD}  # old\n")
    assert (ring.ids, ring.first, ring.seals, NO_KEYRING.seals) == (("b", "a", "c-2"), "b", True, False)
    assert repr(ring) == "Keyring(b, a, c-2)"
