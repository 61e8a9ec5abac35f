"""Functions decorated with a section."""

import functools
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, Final, TypeVar, cast

from training_profiler.recording.stand_in import StandIn, stand_in
from training_profiler.recording.tracebacks import hide_our_frames

F = TypeVar("F")
SectionLookup = Callable[[str], Any]  # returns the section of a name on the calling thread

_FUNCTIONS: Final = (FunctionType, MethodType, BuiltinFunctionType)


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
