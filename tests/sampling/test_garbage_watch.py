"""Collections are timed by a callback without Python code, whose cost is limited."""

import functools
import gc
import os
import threading
import types
from collections.abc import Iterator
from typing import Any

import pytest

from training_profiler.safety.fault_guard import FaultGuard
from training_profiler.sampling import garbage_watch
from training_profiler.sampling.garbage_watch import COST_NS, MOST_COST, Collection, GarbageWatch


@pytest.fixture
def watch() -> Iterator[GarbageWatch]:
    gc.disable()  # no collection but those of the tests
    gc.collect(0)  # else one may be due at the moment in which a test switches them on
    gc.freeze()  # what is there by now takes a second to collect
    watch = GarbageWatch(FaultGuard().run, functools.partial(next, iter(range(0, 10**18, 10**9))))
    watch.start(is_on=True)
    yield watch
    watch.close()
    gc.unfreeze()
    gc.enable()


def make_garbage_until_collected(watch: GarbageWatch) -> list[Collection]:
    gc.enable()
    kept: list[list[int]] = []
    while not (found := watch.pop()):
        kept.append([1])
    return found


def test_each_collection_has_its_times_and_its_generation(watch: GarbageWatch) -> None:
    seen: list[int] = []
    gc.callbacks.append(lambda phase, info: seen.append(info["generation"]))
    try:
        for generation in (0, 1, 2, 2, 1, 0, 0, 2):
            gc.collect(generation)
    finally:
        gc.callbacks.pop()
    collections = watch.pop()
    assert [each.generation for each in collections] == seen[::2] == [0, 1, 2, 2, 1, 0, 0, 2]
    assert [(each.begin_ns, each.end_ns) for each in collections[:2]] == [(10**9, 2 * 10**9), (3 * 10**9, 4 * 10**9)]
    assert watch.pop() == []


def test_collections_that_the_program_asks_for_are_known(watch: GarbageWatch) -> None:
    gc.enable()
    gc.collect()
    gc.collect(0)
    assert [each.is_asked for each in watch.pop()] == [True, True]
    assert {each.is_asked for each in make_garbage_until_collected(watch)} == {False}


@pytest.mark.parametrize(("trains", "generations"), [(False, [2]), (True, [0])])
def test_only_collections_of_the_training_thread_count(
    watch: GarbageWatch, trains: bool, generations: list[int]
) -> None:
    def collect() -> None:
        if trains:
            watch.sample_this_thread()
        gc.collect(0)

    thread = threading.Thread(target=collect)
    thread.start()
    thread.join()
    gc.collect()
    assert [each.generation for each in watch.pop()] == generations


def test_a_collection_under_way_is_returned_once_it_has_ended(watch: GarbageWatch) -> None:
    early: list[list[Collection]] = []

    def callback(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            early.append(watch.pop())

    gc.callbacks.append(callback)
    try:
        gc.collect()
    finally:
        gc.callbacks.remove(callback)
    assert early == [[]]
    assert [each.generation for each in watch.pop()] == [2]


def test_the_callback_has_no_python_code(watch: GarbageWatch) -> None:
    (callback,) = [each for each in gc.callbacks if each is watch._callback]
    reached: list[Any] = [callback]
    for each in reached:  # all that it refers to
        assert not isinstance(each, types.FunctionType | types.MethodType | types.CodeType), each
        is_of_python = isinstance(each, types.ModuleType) or (isinstance(each, type) and each.__name__ != "Phases")
        if not is_of_python:
            reached += [known for known in gc.get_referents(each) if not any(known is other for other in reached)]
    assert any(isinstance(each, property) for each in reached)


def test_a_full_list_drops_the_oldest(watch: GarbageWatch, monkeypatch: pytest.MonkeyPatch) -> None:
    watch.close()
    monkeypatch.setattr(garbage_watch, "MOST_WAITING", 3)
    small = GarbageWatch(FaultGuard().run)
    small.start(is_on=True)
    try:
        gc.collect(0)
        gc.collect(1)
        assert [each.generation for each in small.pop()] == [1]  # the begin of the first is lost
    finally:
        small.close()


def test_many_collections_are_timed_in_a_part_of_the_time(watch: GarbageWatch) -> None:
    watch.close()
    now_ns = [0]
    dense = GarbageWatch(FaultGuard().run, functools.partial(now_ns.__getitem__, 0))
    most = int(MOST_COST * 10**9 / COST_NS)  # in a second

    def collect(times: int) -> None:
        for _ in range(times):
            gc.collect(0)
        now_ns[0] += 10**9
        dense.poll()

    dense.start(is_on=True)
    try:
        collect(most)
        assert dense.since_ns == 0
        assert dense.notes() == []
        assert len(dense.pop()) == most
        collect(2 * most)
        assert dense.since_ns is None  # three times what two seconds may have
        assert len(dense.pop()) == 2 * most
        now_ns[0] += 10**9 - 10**6
        dense.poll()
        assert dense.since_ns is None
        assert dense.pop() == []
        now_ns[0] += 2 * 10**6
        dense.poll()
        assert dense.since_ns == now_ns[0]
        collect(most)
        assert dense.since_ns is not None
        assert len(dense.pop()) == most
        assert dense.notes() == [
            "garbage collections: timed in a part of the steps, because there were over 1,333 in a second"
        ]
    finally:
        dense.close()
    now_ns[0] += 10**12
    dense.poll()
    assert dense._callback not in gc.callbacks


def test_callbacks_of_the_program_stay(watch: GarbageWatch) -> None:
    class Equal:
        def __eq__(self, other: object) -> bool:
            raise RuntimeError

        def __call__(self, phase: str, info: dict[str, int]) -> None: ...

    own = Equal()
    gc.callbacks.insert(0, own)
    gc.callbacks.append(own)
    try:
        before = [id(each) for each in gc.callbacks if each is not watch._callback]
        watch.close()
        watch.close()
        assert [id(each) for each in gc.callbacks] == before
    finally:
        gc.callbacks[:] = [each for each in gc.callbacks if each is not own]


def test_a_program_that_clears_the_callbacks_ends_the_timing(watch: GarbageWatch) -> None:
    others = gc.callbacks[:]
    gc.callbacks.clear()
    try:
        gc.collect()
        assert watch.pop() == []
        watch.close()
    finally:
        gc.callbacks[:] = [each for each in others if each is not watch._callback]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_has_no_callback(watch: GarbageWatch) -> None:
    gc.collect()
    child = os.fork()
    if not child:
        watch.after_fork_in_child()
        gc.collect()
        os._exit(0 if watch._callback not in gc.callbacks and watch.pop() == [] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(watch.pop()) == 1


def test_what_was_recorded_is_complete_after_the_end_and_not_when_it_is_switched_off(watch: GarbageWatch) -> None:
    since_ns = watch.since_ns
    watch.close()
    assert watch.since_ns == since_ns is not None
    watch.start(is_on=False)
    assert watch.since_ns is None
