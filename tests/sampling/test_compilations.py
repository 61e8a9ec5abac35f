import sys
from types import SimpleNamespace

import pytest

import training_profiler.sampling.compilations as compilations_module
from training_profiler.sampling.compilations import CALLBACKS, Compilations


def compile_once(compilations: Compilations, compile_id: str, trigger: str = "CallbackTrigger.DYNAMO") -> None:
    args = SimpleNamespace(compile_id=compile_id, callback_trigger=trigger)
    compilations.begins(args)
    compilations.ends(args)


def test_compilations_of_the_same_code_are_recompilations():
    compilations = Compilations()
    assert compilations.facts() is None
    for compile_id in ("0/0", "1/0", "0/1", "0/2"):
        compile_once(compilations, compile_id)
    compile_once(compilations, "0/2", "CallbackTrigger.LAZY_BACKWARD")
    facts = compilations.facts()
    assert (facts.graphs, facts.recompiled) == (4, 2)
    assert 0 < facts.recompiled_s < facts.seconds
    assert facts.place.startswith("sampling/test_compilations.py") or "test_compilations.py" in facts.place


def test_callbacks_without_arguments_as_of_torch_2_4_and_a_torch_without_any_raise_nothing(monkeypatch):
    monkeypatch.setitem(sys.modules, CALLBACKS, SimpleNamespace())
    compilations = Compilations()
    compilations.start()
    compilations.begins()
    compilations.ends()
    compilations.close()
    assert compilations.facts() is None


def test_a_backward_graph_is_compiled_again_with_its_forward_graph(monkeypatch):
    times_ns = iter((0, 10, 10, 30, 30, 70, 70, 150))
    monkeypatch.setattr(compilations_module.time, "perf_counter_ns", lambda: 1 + next(times_ns))
    compilations = Compilations()
    for compile_id in ("0/0", "0/1"):
        compile_once(compilations, compile_id)
        compile_once(compilations, compile_id, "CallbackTrigger.LAZY_BACKWARD")
    facts = compilations.facts()
    assert (facts.graphs, facts.seconds * 1e9) == (2, pytest.approx(150))
    assert (facts.recompiled, facts.recompiled_s * 1e9) == (1, pytest.approx(120))


def test_callbacks_return_after_a_reset_and_go_at_the_end(monkeypatch):
    handler = SimpleNamespace(start_callbacks=[], end_callbacks=[])
    handler.register_start_callback = handler.start_callbacks.append
    handler.register_end_callback = handler.end_callbacks.append
    monkeypatch.setitem(sys.modules, CALLBACKS, SimpleNamespace(callback_handler=handler))
    compilations = Compilations()
    compilations.start()
    compilations.keep_listening()
    assert (len(handler.start_callbacks), len(handler.end_callbacks)) == (1, 1)
    handler.start_callbacks.clear()
    handler.end_callbacks.clear()
    compilations.keep_listening()
    assert (len(handler.start_callbacks), len(handler.end_callbacks)) == (1, 1)
    compilations.close()
    assert (handler.start_callbacks, handler.end_callbacks) == ([], [])
