"""Arguments from Python to JSON and back, and what is refused on the way."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, cast
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from duly import App, Context, InvalidInputError
from duly.tasks.arguments import ArgumentsError
from duly.tasks.enqueueing import fingerprint

app = App()


class Colour(Enum):
    RED = "red"


@dataclass
class Line:
    sku: str
    count: int = 1


@dataclass
class Order:
    id: int
    lines: list[Line] = field(default_factory=list)


class Address(BaseModel):
    street: str
    zip: int


@app.task(name="everything")
def everything(
    order: Order,
    address: Address,
    colours: set[Colour],
    at: datetime,
    on: date,
    price: Decimal,
    wait: timedelta,
    key: UUID,
    *rest: int,
    plain: Any = None,
    maybe: int | None = None,
    **more: float,
) -> None: ...


@app.task(name="aware")
def aware(context: Context, number: int, word: str = "w") -> tuple[int, int, str]:
    return context.attempt, number, word


@app.task(name="anything")
def anything(value: Any) -> Any:
    return value


def there_and_back(task: Any, *args: Any, **kwargs: Any) -> tuple[list[Any], dict[str, Any]]:
    stored = json.loads(json.dumps(task.arguments.to_json(args, kwargs)))
    positional, by_name = task.arguments.to_call(stored, Context.of_no_job())
    return positional, by_name


def test_typed_arguments_come_back_as_they_were() -> None:
    """Dataclasses in dataclasses, models, enums, times, numbers of any kind; a tuple of more and names of more."""
    given = [
        Order(1, [Line("a"), Line("b", 2)]),
        Address(street="s", zip=7),
        {Colour.RED},
        datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        date(2026, 1, 2),
        Decimal("1.10"),
        timedelta(seconds=1.5),
        UUID(int=7),
        1,
        2,
    ]
    named = {"plain": {"a": [1, None, "ü"]}, "maybe": 3, "extra": 1.5}
    assert there_and_back(everything, *given, **named) == (given, named)


@dataclass
class Sealed:
    data: bytes


def test_bytes_and_keys_that_are_annotated_come_back_as_they_were() -> None:
    """Their annotations make them again what they were; a dict of anything does not."""

    def keeps(data: bytes, words: dict[int, str], sealed: Sealed, loose: dict[str, Any]) -> None: ...

    task = App().task(name="keeps")(keeps)
    given = [b"x", {1: "a"}, Sealed(b"y"), {"a": 1}]
    assert there_and_back(task, *given) == (given, {})
    with pytest.raises(ArgumentsError, match="argument loose has bytes"):
        task.call(b"x", {1: "a"}, Sealed(b"y"), {"a": b"z"})


def test_defaults_are_the_code_that_runs() -> None:
    """What was left out is not stored, so a default that changes in the next release is the new one."""
    assert aware.arguments.to_json((1,), {}) == {"number": 1}
    assert there_and_back(aware, 1)[0][1:] == [1, "w"]


def test_a_task_stays_a_function() -> None:
    """It is called as it was, with a context of no job where it asks for one."""
    assert aware(3, word="x") == (1, 3, "x")
    assert aware.function.__name__ == "aware"


@pytest.mark.parametrize(
    ("args", "kwargs", "says"),
    [
        ((), {}, "missing a required argument: 'number'"),
        ((1, "w", 3), {}, "too many positional arguments"),
        ((1,), {"wrod": "x"}, "unexpected keyword argument 'wrod'"),
        (("x",), {}, "argument number: Input should be a valid integer"),
        ((None,), {}, "argument number"),
        ((1, b"\xff"), {}, "argument word"),
    ],
)
def test_what_does_not_fit_is_refused_at_the_enqueue(args: tuple[Any, ...], kwargs: dict[str, Any], says: str) -> None:
    """With the task, the argument and what is wrong, without the value: it may be secret."""
    with pytest.raises(ArgumentsError, match=says) as caught:
        aware.call(*args, **kwargs)
    assert "aware" in str(caught.value)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("a\x00b", r"arguments.value holds a NUL"),
        ({"k\x00": 1}, "a key of .* holds a NUL"),
        (["\ud800"], r"arguments.value\[0\] holds half a surrogate pair"),
        ({"a": [1, float("nan")]}, r"arguments.value.a\[1\] is nan"),
        (float("-inf"), "is -inf"),
        (1 << 2000, "2001 bits"),
        (object(), "cannot be written as JSON"),
        ("x" * 1_000_001, "1,000,000 are the limit"),
        (lambda: 1, "cannot be written as JSON"),
        (b"x", "argument value has bytes, or keys that are no text"),
        ({1: 2}, "annotate what they are"),
        ([{"a": ({None: bytearray(b"x")},)}], "annotate what they are"),
    ],
)
def test_what_postgresql_cannot_hold_is_refused(value: Any, says: str) -> None:
    """FO-038, FO-039, FO-040: before anything is sent, and the place is named."""
    with pytest.raises(InvalidInputError, match=says):
        anything.call(value)


def test_what_another_release_stored_fails_with_its_name() -> None:
    """Arguments that are missing, unknown, of another type, or no object at all."""
    here = Context.of_no_job()
    for stored, says in [
        ({}, "number is missing"),
        ({"number": 1, "old": 2}, "has no argument old"),
        ({"number": "x"}, "argument number"),
        ([1], "not an object"),
    ]:
        with pytest.raises(ArgumentsError, match=says):
            aware.arguments.to_call(stored, here)  # type: ignore[arg-type]


def test_what_is_no_task() -> None:
    """Generators, classes, lambdas without a name, two functions under one name, two contexts."""

    def yields() -> Any:
        yield 1

    async def yields_too() -> Any:
        yield 1

    def other() -> None: ...

    for wrong, says in [
        (yields, "yields, so"),
        (yields_too, "yields, so"),
        (Line, "is no function"),
        (other, "no name"),
    ]:
        with pytest.raises(InvalidInputError, match=says):
            app.task(cast(Any, wrong))
    with pytest.raises(InvalidInputError, match="two tasks are named 'aware'"):
        app.task(name="aware")(other)
    with pytest.raises(InvalidInputError, match="no option 'retries'"):
        app.task(name="o", retries=3)(other)  # type: ignore[call-overload]

    def twice(one: Context, two: Context) -> None: ...

    with pytest.raises(InvalidInputError, match="one is enough"):
        app.task(name="twice")(twice).call()  # type: ignore[call-arg]


def test_annotations_that_cannot_be_json_say_so() -> None:
    """An object that is no data is not a parameter of a job."""

    class Thing: ...

    def takes(thing: Any) -> None: ...

    takes.__annotations__["thing"] = Thing
    with pytest.raises(InvalidInputError, match=r"thing is annotated .* hand over ids instead of objects"):
        app.task(name="takes")(takes).call(Thing())


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-1000, 1000)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text("ab1| ", max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab|", max_size=2), inner, max_size=3),
    max_leaves=6,
)


def told_apart(value: Any) -> Any:
    """Equal for what is the same JSON but for the order of keys; 1, 1.0, True and "1" are not."""
    if isinstance(value, dict):
        return ("object", frozenset((key, told_apart(member)) for key, member in value.items()))
    if isinstance(value, list):
        return ("array", tuple(told_apart(item) for item in value))
    return (type(value).__name__, repr(value))


@given(values, values)
def test_unique_keys_differ_as_their_data_does(one: Any, other: Any) -> None:
    """FO-026: distinct data gives distinct keys; only the order of keys is neutral."""
    same = told_apart(one) == told_apart(other)
    assert (fingerprint("t", {"v": one}) == fingerprint("t", {"v": other})) is same


def test_unique_keys_that_others_confuse() -> None:
    """FO-026: nested values, kinds of numbers, order in a list, how fields join."""
    apart: list[Any] = [
        1,
        1.0,
        True,
        "1",
        None,
        "null",
        [1, 2],
        [2, 1],
        {"a": {"b": 1}},
        {"a": {"b": 2}},
        {"a|b": "c"},
        {"a": "b|c"},
    ]
    assert len({fingerprint("t", {"v": value}) for value in apart}) == len(apart)
    assert fingerprint("t", {"a": 1, "b": {"c": 1, "d": 2}}) == fingerprint("t", {"b": {"d": 2, "c": 1}, "a": 1})
    assert fingerprint("t", {}) != fingerprint("u", {})
