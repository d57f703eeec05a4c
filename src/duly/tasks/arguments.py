"""A function's arguments, from Python to JSON and back: bound by name, validated by annotation, at the enqueue and
again at the run.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from functools import cached_property
from typing import Any, get_type_hints

from duly.model.errors import InvalidInputError
from duly.model.storable import shown
from duly.tasks.context import Context
from duly.tasks.json_input import check_finite, input_text

if typing.TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError

_PLAIN = (bool, int, str)


class ArgumentsError(InvalidInputError):
    """Arguments that do not fit their task."""


class Arguments:
    """Knows one function's parameters. Annotations are read at the first use, so that they may name what is defined
    later.
    """

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self._name = name
        self._function = function
        self.signature = inspect.signature(function)

    @cached_property
    def _hints(self) -> dict[str, Any]:
        try:
            return get_type_hints(self._function, include_extras=True)
        except Exception as error:  # whatever evaluating an annotation raises
            raise InvalidInputError(
                f"task {self._name}: its annotations cannot be read: {shown(error)}; "
                "define what they name in the module"
            ) from error

    @cached_property
    def context_name(self) -> str | None:
        """The parameter that is annotated as a Context, if there is one: it is given at the run, not at the enqueue."""
        found = [name for name in self.signature.parameters if self._hints.get(name) is Context]
        if len(found) > 1:
            raise InvalidInputError(f"task {self._name}: {' and '.join(found)} are both a Context: one is enough")
        return found[0] if found else None

    @cached_property
    def _asked(self) -> inspect.Signature:
        """The signature without the context."""
        kept = [p for name, p in self.signature.parameters.items() if name != self.context_name]
        return self.signature.replace(parameters=kept)

    @cached_property
    def _adapters(self) -> dict[str, TypeAdapter[Any]]:
        return {name: _adapter(self._hints.get(name, Any), self._name, name) for name in self._asked.parameters}

    @cached_property
    def _result(self) -> TypeAdapter[Any] | None:
        hint = self._hints.get("return", Any)
        return None if hint is Any else _adapter(hint, self._name, "the result")

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> inspect.BoundArguments:
        """As the function itself would. Raises ArgumentsError."""
        try:
            return self._asked.bind(*args, **kwargs)
        except TypeError as error:
            raise ArgumentsError(f"task {self._name}: {error}") from error

    def to_json(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """What is stored: plain JSON by parameter name, without what was left to its default. Raises ArgumentsError."""
        stored: dict[str, Any] = {}
        for name, value in self.bind(args, kwargs).arguments.items():
            match self._asked.parameters[name].kind:
                case inspect.Parameter.VAR_POSITIONAL:
                    stored[name] = [self._dumped(name, item) for item in value]
                case inspect.Parameter.VAR_KEYWORD:
                    for key, item in value.items():
                        if key in self._asked.parameters:
                            raise ArgumentsError(f"task {self._name}: {key!r} is a parameter of its own")
                        stored[key] = self._dumped(name, item)
                case _:
                    stored[name] = self._dumped(name, value)
        input_text(stored, f"task {self._name}: its arguments")
        return stored

    def partly(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Some of the arguments by name, as they are stored: for those who look for jobs. Raises ArgumentsError."""
        unknown = set(values) - set(self._asked.parameters)
        if unknown:
            raise ArgumentsError(f"task {self._name}: it has no argument {', '.join(sorted(unknown))}")
        return {name: self._dumped(name, value) for name, value in values.items()}

    def to_call(self, stored: Mapping[str, Any], context: Context) -> tuple[list[Any], dict[str, Any]]:
        """What to call the function with. Raises ArgumentsError for what does not fit, as another release may have
        stored.
        """
        if not isinstance(stored, dict):
            raise ArgumentsError(f"task {self._name}: its arguments are {shown(stored)}, not an object by name")
        positional: list[Any] = []
        by_name: dict[str, Any] = {}
        rest = dict(stored)
        for name, parameter in self.signature.parameters.items():
            if name == self.context_name:
                value: Any = context
            elif parameter.kind is inspect.Parameter.VAR_POSITIONAL:
                positional += [self._loaded(name, item) for item in rest.pop(name, [])]
                continue
            elif parameter.kind is inspect.Parameter.VAR_KEYWORD:
                by_name |= {key: self._loaded(name, item) for key, item in rest.items()}
                rest = {}
                continue
            elif name in rest:
                value = self._loaded(name, rest.pop(name))
            elif parameter.default is not inspect.Parameter.empty:
                value = parameter.default
            else:
                raise ArgumentsError(f"task {self._name}: argument {name} is missing")
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
                by_name[name] = value
            else:
                positional.append(value)
        if rest:
            raise ArgumentsError(f"task {self._name}: it has no argument {', '.join(sorted(rest))}")
        return positional, by_name

    def with_context(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """For a direct call: the arguments as given, and a context of no job if the caller gave none."""
        if self.context_name is None or any(isinstance(given, Context) for given in (*args, *kwargs.values())):
            return list(args), kwargs
        bound = self.bind(args, kwargs)
        full = self.signature.bind_partial()
        for name in self.signature.parameters:
            if name == self.context_name:
                full.arguments[name] = Context.of_no_job()
            elif name in bound.arguments:
                full.arguments[name] = bound.arguments[name]
        return list(full.args), full.kwargs

    def dump_result(self, value: Any) -> Any:
        """A dataclass or a pydantic model as JSON; everything else as it is, to be checked when it is kept."""
        if (is_dataclass(value) and not isinstance(value, type)) or hasattr(type(value), "__pydantic_serializer__"):
            from pydantic import TypeAdapter

            return TypeAdapter(type(value)).dump_python(value, mode="json")
        return value

    def load_result(self, value: Any) -> Any:
        """The result by the function's return annotation; as JSON has it where there is none. Raises ArgumentsError."""
        if self._result is None or value is None:
            return value
        return self._validated(self._result, "the result", value)

    def _dumped(self, name: str, value: Any) -> Any:
        if type(value) in _PLAIN and self._hints.get(name) is type(value):
            return value
        adapter = self._adapters[name]
        validated = self._validated(adapter, name, value)
        try:
            dumped = adapter.dump_python(validated, mode="json", warnings="error")
            if dumped is None or isinstance(dumped, dict | list):  # pydantic writes NaN as null there
                plain = adapter.dump_python(validated)
                check_finite(plain, f"task {self._name}: its arguments.{name}")
            else:
                plain = validated
            if _may_change(plain) and self._validated(adapter, name, dumped) != validated:
                raise ArgumentsError(
                    f"task {self._name}: argument {name} has bytes, or keys that are no text, which would come back as "
                    "text: annotate what they are, as in dict[int, str]",
                    f"/{name}",
                )
            return dumped
        except InvalidInputError:
            raise
        except Exception as error:  # pydantic's own, and whatever a serializer of the user's raises
            raise ArgumentsError(
                f"task {self._name}: argument {name} cannot be written as JSON: {shown(error)}"
            ) from error

    def _loaded(self, name: str, value: Any) -> Any:
        if type(value) in _PLAIN and self._hints.get(name) is type(value):
            return value
        return self._validated(self._adapters[name], name, value)

    def _validated(self, adapter: TypeAdapter[Any], name: str, value: Any) -> Any:
        from pydantic import ValidationError

        try:
            return adapter.validate_python(value)
        except ValidationError as error:
            what = name if name == "the result" else f"argument {name}"
            raise ArgumentsError(f"task {self._name}: {what}{_first(error)}", f"/{name}") from error


def _adapter(annotation: Any, task: str, name: str) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter
    from pydantic.errors import PydanticSchemaGenerationError, PydanticUndefinedAnnotation

    try:
        return TypeAdapter(annotation)
    except (PydanticSchemaGenerationError, PydanticUndefinedAnnotation) as error:
        raise InvalidInputError(
            f"task {task}: {name} is annotated {shown(annotation)}, which cannot become JSON: "
            "use plain types, a dataclass or a pydantic model, and hand over ids instead of objects"
        ) from error


def _may_change(value: object) -> bool:
    """Whether it has what JSON holds as text only: an annotation makes it what it was, or nothing does."""
    match value:
        case bytes() | bytearray():
            return True
        case dict():
            return any(not isinstance(key, str) or _may_change(member) for key, member in value.items())
        case list() | tuple() | set() | frozenset():
            return any(_may_change(item) for item in value)
    return False


def _first(error: ValidationError) -> str:
    """Where and what, without the value: it may be secret."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
    return f"{where}: {first['msg']}"
