"""Objects that stand in for one of the user's, and behave as it does; functions decorated with a section."""

import copy
import functools
import inspect
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator
from operator import attrgetter
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, Final, TypeVar, cast
from weakref import WeakKeyDictionary

from training_profiler.recording.tracebacks import hide_our_frames

S = TypeVar("S", bound="StandIn")
F = TypeVar("F")
SectionLookup = Callable[[str], Any]  # returns the section of a name on the calling thread

_FUNCTIONS: Final = (FunctionType, MethodType, BuiltinFunctionType)
# Special methods, which Python looks up on the type, but which a stand-in must not pass on: its own, and those of
# classes.
_NOT_PASSED_ON: Final = re.compile(
    "__(class|new|init|del|getattribute|getattr|setattr|delattr|slots|dict|weakref|doc|module|reduce|reduce_ex"
    "|getstate|setstate|getnewargs|getnewargs_ex|copy|deepcopy|init_subclass|subclasshook|instancecheck"
    "|subclasscheck|class_getitem|set_name|prepare|mro_entries)__"
)
# What every object has, but not in the same way.
_OF_OBJECTS: Final = ("__repr__", "__str__", "__format__", "__dir__", "__eq__", "__ne__", "__hash__")


class StandIn:
    """Has the attributes, the class and the special methods of ``wrapped``, except those that a subclass defines.

    ``stand_in`` makes it: special methods are looked up on the type, so each type of ``wrapped`` has a type for its
    stand-ins.
    """

    __slots__ = ("__weakref__", "_profiler_wrapped")

    def __init__(self, wrapped: Any) -> None:
        object.__setattr__(self, "_profiler_wrapped", wrapped)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_profiler_"):  # while it is being made
            raise AttributeError(name)
        try:
            return getattr(self._profiler_wrapped, name)
        except BaseException as error:
            hide_our_frames(error)
            raise

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._profiler_wrapped, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._profiler_wrapped, name)

    def __copy__(self) -> Any:
        copied = copy.copy(self._profiler_wrapped)
        return self if copied is self._profiler_wrapped else self._profiler_like(copied)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        copied = copy.deepcopy(self._profiler_wrapped, memo)
        return self if copied is self._profiler_wrapped else self._profiler_like(copied)

    def __bool__(self) -> bool:
        return bool(self._profiler_wrapped)

    def _profiler_like(self, wrapped: Any) -> Any:
        """Return a stand-in for ``wrapped`` that does the same as this one."""
        raise NotImplementedError


def stand_in(base: Callable[..., S], wrapped: Any, *args: Any) -> S:
    """Return a stand-in of the class ``base`` for ``wrapped``."""
    types = _types.setdefault(base, WeakKeyDictionary())
    kind = types.get(type(wrapped))
    if kind is None:
        kind = types[type(wrapped)] = _type_of(base, type(wrapped))
    return kind(wrapped, *args)  # type: ignore[no-any-return]


_types: dict[Any, WeakKeyDictionary[type, Any]] = {}


def _type_of(base: Any, kind: type) -> Any:
    own = {name for parent in base.__mro__[:-1] for name in vars(parent)}
    body: dict[str, Any] = {
        "__slots__": (),
        "__qualname__": kind.__qualname__,
        "__class__": property(attrgetter("_profiler_wrapped.__class__")),
        "__module__": _ModuleName(kind.__module__),
        "__doc__": property(attrgetter("_profiler_wrapped.__doc__")),
    }
    for name in dir(kind):
        is_special = name.startswith("__") and name.endswith("__")
        if not is_special or name in own or _NOT_PASSED_ON.fullmatch(name) or name in body:
            continue
        if name in _OF_OBJECTS or getattr(kind, name, None) is not getattr(object, name, None):
            method = getattr(kind, name, None)
            if method is None:  # such as __hash__ of a list
                body[name] = None
            elif callable(method):
                body[name] = _passed_on(name, method)
    return type(kind.__name__, (base,), body)


class _ModuleName(str):
    """The module of a type of stand-ins; of one of them, what the user's object says."""

    __slots__ = ()

    def __get__(self, stand_in: StandIn, kind: type) -> str:
        return stand_in._profiler_wrapped.__module__  # type: ignore[no-any-return]


def _passed_on(name: str, method: Any) -> Callable[..., Any]:
    def call(self: StandIn, *args: Any, **kwargs: Any) -> Any:
        wrapped = self._profiler_wrapped
        try:
            return getattr(type(wrapped), name)(wrapped, *map(_unwrapped, args), **kwargs)
        except BaseException as error:
            hide_our_frames(error)
            raise

    call.__name__ = name
    return functools.wraps(method)(call) if isinstance(method, FunctionType) else call


def _unwrapped(value: Any) -> Any:
    return value._profiler_wrapped if issubclass(type(value), StandIn) else value


def timed(function: F, section: SectionLookup, name: str) -> F:
    """Return ``function`` timed under ``name``; a class as it is."""
    if isinstance(function, type):
        return function  # what it makes must stay its instance, and it must stay a class to derive from
    if isinstance(function, (staticmethod, classmethod)):
        return cast(F, type(function)(timed(function.__func__, section, name)))
    return cast(F, _timed(function, section, name))


class TimedCallable(StandIn):
    """An object that can be called, such as a module or the result of ``functools.lru_cache``; its calls are timed."""

    __slots__ = ("_profiler_name", "_profiler_section")

    def __init__(self, wrapped: Any, section: SectionLookup, name: str) -> None:
        super().__init__(wrapped)
        object.__setattr__(self, "_profiler_section", section)
        object.__setattr__(self, "_profiler_name", name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it inside of the section."""
        try:
            with self._profiler_section(self._profiler_name):
                return self._profiler_wrapped(*args, **kwargs)
        except BaseException as error:
            hide_our_frames(error)
            raise

    def _profiler_like(self, wrapped: Any) -> Any:
        return timed(wrapped, self._profiler_section, self._profiler_name)

    def __reduce_ex__(self, protocol: Any) -> Any:
        reduced = self._profiler_wrapped.__reduce_ex__(protocol)
        if isinstance(reduced, str):  # found by its name in its module
            return reduced
        return _decorated, (self._profiler_section(self._profiler_name), self._profiler_wrapped)


class TimedDescriptor(TimedCallable):
    """One that becomes a method in a class."""

    __slots__ = ()

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        bound = type(self._profiler_wrapped).__get__(self._profiler_wrapped, instance, owner)
        return timed(bound, self._profiler_section, self._profiler_name)


def _decorated(section: Any, function: Any) -> Any:
    return section(function)


def _timed(function: Any, section: SectionLookup, name: str) -> Any:
    if inspect.isasyncgenfunction(function):
        return _timed_async_generator(function, section, name)
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def timed_coroutine(*args: Any, **kwargs: Any) -> Any:
            try:
                with section(name):
                    return await cast(Awaitable[Any], function(*args, **kwargs))
            except BaseException as error:
                hide_our_frames(error)
                raise

        return timed_coroutine
    if inspect.isgeneratorfunction(function):
        return _timed_generator(function, section, name)
    if not isinstance(function, _FUNCTIONS):
        kind = TimedDescriptor if hasattr(type(function), "__get__") else TimedCallable
        return stand_in(kind, function, section, name)

    @functools.wraps(function)
    def timed(*args: Any, **kwargs: Any) -> Any:
        try:
            with section(name):
                return function(*args, **kwargs)
        except BaseException as error:
            hide_our_frames(error)
            raise

    return timed


def _timed_generator(function: Callable[..., Any], section: SectionLookup, name: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def timed(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        try:
            generator: Iterator[Any] = function(*args, **kwargs)
            return (yield from _TimedResumptions(generator, section, name))
        except BaseException as error:
            hide_our_frames(error)
            raise

    return timed


class _TimedResumptions:
    """A generator of which each resumption is one span; ``yield from`` forwards send, throw and close."""

    def __init__(self, generator: Any, section: SectionLookup, name: str) -> None:
        self._generator = generator
        self._section = section
        self._name = name

    def __iter__(self) -> "_TimedResumptions":
        return self

    def __next__(self) -> Any:
        with self._section(self._name):
            return next(self._generator)

    def send(self, value: Any) -> Any:
        with self._section(self._name):
            return self._generator.send(value)

    def throw(self, *exception: Any) -> Any:
        with self._section(self._name):
            return self._generator.throw(*exception)

    def close(self) -> None:
        self._generator.close()


def _timed_async_generator(function: Callable[..., Any], section: SectionLookup, name: str) -> Callable[..., Any]:
    @functools.wraps(function)
    async def timed(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        try:
            generator = function(*args, **kwargs)
            resumption = generator.asend(None)
            try:
                while True:
                    with section(name):
                        try:
                            value = await resumption
                        except StopAsyncIteration:
                            return
                    try:
                        resumption = generator.asend((yield value))
                    except Exception as error:  # thrown in by athrow
                        resumption = generator.athrow(error)
            finally:
                await generator.aclose()
        except BaseException as error:
            hide_our_frames(error)
            raise

    return timed
