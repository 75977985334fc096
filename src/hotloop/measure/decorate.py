"""`@profile_function`: regions around functions, methods, coroutines and generators.

Coroutines and generators are timed at each resumption, since other code runs while they are suspended. Every
resumption therefore counts as one call.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any


def decorate(region: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `function` so that its running time is recorded in `region`.

    Raises TypeError when it is not callable.
    """
    if isinstance(function, (staticmethod, classmethod)):
        return type(function)(decorate(region, function.__func__))
    if not callable(function):
        raise TypeError(f"A region decorates functions, not {type(function).__name__} ({function!r}).")
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def coroutine(*args: Any, **kwargs: Any) -> Any:
            return await _Resumed(region, function(*args, **kwargs))

        return coroutine
    if inspect.isasyncgenfunction(function):

        @functools.wraps(function)
        async def async_generator(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
            inner = function(*args, **kwargs)
            try:
                send: Any = None
                while True:
                    try:
                        item = await _Resumed(region, inner.asend(send))
                    except StopAsyncIteration:
                        return
                    while True:
                        try:
                            send = yield item
                            break
                        except GeneratorExit:
                            raise
                        except BaseException as error:
                            try:
                                item = await _Resumed(region, inner.athrow(error))
                            except StopAsyncIteration:
                                return
            finally:
                await inner.aclose()

        return async_generator
    if inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        def generator(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
            return (yield from _resume(region, function(*args, **kwargs)))

        return generator
    wrapper: Callable[..., Any] = functools.update_wrapper(region.wrap(function), function)
    return wrapper


class _Resumed:
    """Awaits an awaitable with the region open whenever it runs."""

    __slots__ = ("_inner", "_region")

    def __init__(self, region: Any, inner: Any):
        self._region = region
        self._inner = inner

    def __await__(self) -> Generator[Any, Any, Any]:
        return _resume(self._region, self._inner.__await__())


def _resume(region: Any, inner: Any) -> Generator[Any, Any, Any]:
    """Drive a generator like `yield from`, with the region open whenever it runs."""
    step: Callable[[], Any] = functools.partial(next, inner)
    while True:
        try:
            with region:
                item = step()
        except StopIteration as stop:
            return stop.value
        try:
            sent = yield item
        except GeneratorExit:
            with region:
                inner.close()
            raise
        except BaseException as error:
            step = functools.partial(inner.throw, error)
        else:
            step = functools.partial(next, inner) if sent is None else functools.partial(inner.send, sent)
