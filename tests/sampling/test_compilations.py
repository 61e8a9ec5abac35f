import sys
from types import SimpleNamespace

import pytest

import training_profiler.sampling.compilations as compilations_module
from training_profiler.model.program import BREAK, LENGTH, LIMIT, OTHER_GUARD, SHAPE, STATE, VALUE
from training_profiler.sampling.compilations import CALLBACKS, METRICS, Compilations, guard_of


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


# As torch 2.13 writes them; "L['x']" is of torch 2.6.
GUARDS = {
    "0/0: tensor 'x' size mismatch at index 1. expected 4, actual 5": (SHAPE, "x, 1"),
    "0/0: tensor 'L['x']' size mismatch at index 0. expected 4, actual 5": (SHAPE, "x, 0"),
    "6/0: 2 <= x.size()[0] <= 6  # return x * 2  # train.py:43 in dyn (1 in framework)": (SHAPE, "x, 0"),
    "6/1: 7 <= batch['x'].size()[2]  # return x": (SHAPE, "batch['x'], 2"),
    "0/1: self.n == 1       # self.n += 1  # train.py:8 in forward (HINT: ...)\nUser stack trace:\n": (VALUE, "self.n"),
    "0/1: L['self'].n == 1": (VALUE, "self.n"),
    "3/0: mode == 'a'": (VALUE, "mode"),
    "2/1: len(batch['m']) == 1   # return x": (LENGTH, "batch['m']"),
    "2/0: not parts   # return x": (LENGTH, "parts"),
    "1/0: not ___dict_contains('a', kw)  # return x": (OTHER_GUARD, "not ___dict_contains('a', kw)"),
    "0/0: GLOBAL_STATE changed: grad_mode ": (STATE, "GLOBAL_STATE changed"),
    "9/1: tensor 'x' dtype mismatch. expected Float, actual Double": (STATE, "tensor 'x' dtype mismatch"),
    "Unable to find recompilation reasons": (OTHER_GUARD, "Unable to find recompilation reasons"),
}


@pytest.mark.parametrize("text", GUARDS)
def test_a_guard_says_what_changed(text):
    assert guard_of(text) == GUARDS[text]


def recorded(compile_id: str | None, name: str | None = "forward", **fields: object) -> SimpleNamespace:
    """Return a record of dynamo with these fields alone, as each version of torch has others."""
    return SimpleNamespace(compile_id=compile_id, co_name=name, co_filename=__file__, co_firstlineno=7, **fields)


def read(monkeypatch, *records):
    """Return the facts of compilations that dynamo has recorded; the oldest one is from before the profiler."""
    kept = [recorded("9/1", recompile_reason="9/0: x == 1", duration_us=9_000_000)]
    monkeypatch.setitem(sys.modules, METRICS, SimpleNamespace(get_compilation_metrics=lambda: list(kept)))
    compilations = Compilations()
    compilations.start()
    compile_once(compilations, "0/0")
    kept.extend(records)
    assert compilations.facts() == compilations.facts()
    compilations.close()
    return compilations.facts()


def test_reasons_have_times_seconds_with_the_backward_graph_and_a_line(monkeypatch):
    grown = "0/0: tensor 'x' size mismatch at index 0. expected 4, actual 5"
    counted = f'0/1: self.n == 1   # ...\nUser stack trace:\n  File "{__file__}", line 12, in forward\n    self.n'
    facts = read(
        monkeypatch,
        recorded("0/0", duration_us=500_000, inductor_fx_local_cache_miss_count=2),
        recorded("0/1", duration_us=250_000, recompile_reason=grown, inductor_fx_local_cache_hit_count=1),
        recorded("0/1", None, duration_us=500_000),
        recorded("0/2", duration_us=125_000, recompile_reason=counted),
        recorded("0/3", duration_us=125_000, recompile_reason=counted.replace("1   #", "2   #")),
        recorded("0/4", None, duration_us=1, recompile_reason=counted, fail_reason="recompile_limit reached"),
    )
    assert [(each.kind, each.what, each.times, each.seconds) for each in facts.reasons] == [
        (SHAPE, "x, 0", 1, 0.75),
        (VALUE, "self.n", 2, 0.25),
        (LIMIT, "self.n", 1, 0.0),
    ]
    assert [each.place.partition(":")[2] for each in facts.reasons] == ["7 forward", "12 forward", "12 forward"]
    assert (facts.cache_hits, facts.cache_misses) == (1, 2)


def test_the_rest_of_a_function_after_a_break_has_the_line_and_what_dynamo_says_of_it(monkeypatch):
    facts = read(
        monkeypatch,
        recorded("0/0", restart_reasons={"Unsupported Tensor.item() call\n  Explanation: ..."}),
        recorded("1/0", "torch_dynamo_resume_in_forward_at_34", entire_frame_compile_time_s=0.5),
        recorded("2/0", "torch_dynamo_resume_in_forward_at_40"),
    )
    assert [(each.kind, each.what, each.seconds) for each in facts.reasons] == [
        (BREAK, "Unsupported Tensor.item() call", 0.5),
        (BREAK, "", 0.0),
    ]
    assert [each.place.partition(":")[2] for each in facts.reasons] == ["34 forward", "40 forward"]


def test_records_of_a_torch_without_reasons_leave_the_counts_alone(monkeypatch):
    facts = read(monkeypatch, SimpleNamespace(co_name="forward"), SimpleNamespace())
    assert (facts.graphs, facts.reasons) == (1, ())
