import asyncio

import pytest


def spans_of(recorder) -> list[int]:
    """Return the durations of the calling thread's leaf spans in ns."""
    thread_id = recorder.thread_id()
    flat = next(thread.events for thread in recorder.drain().threads if thread.thread_id == thread_id)
    return [end - begin for begin, end in zip(flat[::4], flat[2::4], strict=True)]


def test_decorated_function_is_timed_at_each_call(recorder, clock):
    @recorder.section("a")
    def work(ns):
        """Work."""
        clock.advance_ns(ns)
        return ns

    assert [work(3), work(4)] == [3, 4]
    assert spans_of(recorder) == [3, 4]
    assert (work.__name__, work.__doc__) == ("work", "Work.")


def test_decorated_generator_is_timed_without_its_consumer(recorder, clock):
    @recorder.section("a")
    def batches():
        for ns in (1, 2):
            clock.advance_ns(ns)
            yield ns

    for _ in batches():
        clock.advance_ns(100)
    assert spans_of(recorder) == [1, 2, 0]  # the last resumption reaches the end


def test_decorated_generator_forwards_sent_thrown_and_returned_values(recorder):
    @recorder.section("a")
    def echo():
        try:
            got = yield "ready"
            yield got
        except KeyError:
            return "caught"

    generator = echo()
    assert (next(generator), generator.send("hello")) == ("ready", "hello")
    with pytest.raises(StopIteration) as stop:
        generator.throw(KeyError())
    assert stop.value.value == "caught"


def test_decorated_async_function_is_timed_from_call_to_return(recorder, clock):
    @recorder.section("a")
    async def work():
        clock.advance_ns(2)
        await asyncio.sleep(0)
        clock.advance_ns(3)
        return "done"

    assert asyncio.run(work()) == "done"
    assert spans_of(recorder) == [5]


def test_decorated_async_generator_is_timed_while_it_runs(recorder, clock):
    @recorder.section("a")
    async def batches():
        for ns in (1, 2):
            clock.advance_ns(ns)
            yield ns

    async def consume():
        async for _ in batches():
            clock.advance_ns(100)

    asyncio.run(consume())
    assert spans_of(recorder) == [1, 2, 0]


def test_decorated_async_generator_forwards_sent_and_thrown_values_and_its_end(recorder):
    closed = []

    @recorder.section("a")
    async def echo():
        try:
            try:
                got = yield "ready"
                yield got
            except KeyError:
                yield "caught"
        finally:
            closed.append(True)

    async def consume():
        generator = echo()
        first = await generator.asend(None)
        second = await generator.asend("hello")
        third = await generator.athrow(KeyError())
        assert closed == []
        await generator.aclose()
        return first, second, third

    assert asyncio.run(consume()) == ("ready", "hello", "caught")
    assert closed == [True]


def test_decorating_a_non_callable_raises_with_an_example(recorder):
    with pytest.raises(TypeError, match=r"decorates one function, and was given other arguments; .*example: @profile_"):
        recorder.section("a")(3)
