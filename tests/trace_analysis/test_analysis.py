import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.traces import QUICK, Trace
from training_profiler.trace_analysis.trace import analyse

KINDS = ("k", "ncclDevKernel", "copy")
PARTS = ("compute_ns", "exposed_communication_ns", "exposed_copies_ns", "idle_ns")


def parts(step):
    return tuple(getattr(step, part) for part in PARTS)


WORK = st.lists(
    st.tuples(st.sampled_from(KINDS), st.integers(0, 90), st.integers(0, 30), st.integers(0, 1)),
    min_size=1, max_size=12,
)  # fmt: skip


@QUICK
@given(WORK)
def test_step_parts_equal_a_count_moment_by_moment(tmp_path, work):
    trace = Trace().step(1, 10, 40).step(2, 50, 45)
    doing = {}
    for what, begin, length, device in work:
        if what == "copy":
            trace.copy("DtoD", begin, length, device=device)
        else:
            trace.kernel(what, begin, length, device=device)
        for moment in range(begin, begin + length):
            doing.setdefault(moment, set()).add(what)
    found = trace.analysed(tmp_path)
    for step, (begin, end) in zip(found.steps, [(10, 50), (50, 95)], strict=True):
        expected = dict.fromkeys(("k", "ncclDevKernel", "copy", None), 0)
        for moment in range(begin, end):
            expected[next((what for what in expected if what in doing.get(moment, ())), None)] += 1000
        assert parts(step) == tuple(expected.values())
        assert sum(parts(step)) == step.wall_ns


@pytest.mark.parametrize("options", [{}, {"record_shapes": True, "profile_memory": True, "with_stack": True}])
def test_trace_of_installed_torch_is_read(options, tmp_path):
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    path = tmp_path / "a.pt.trace.json.gz"
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU],
        schedule=torch.profiler.schedule(wait=0, warmup=1, active=3),
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(path)),
        **options,
    ) as profiler:
        for _ in range(4):
            with torch.profiler.record_function("forward_pass"):
                loss = model(torch.ones(4, 8)).sum()
            loss.backward()
            optimizer.step()
            profiler.step()
    found = analyse(path)
    operators = {operator.name: operator for operator in found.operators}
    assert (found.has_gpu, len(found.steps)) == (False, 3)
    assert operators["aten::linear"].section == "forward_pass"
    assert operators["aten::linear"].calls == 3
    assert operators["aten::linear"].host_total_ns >= operators["aten::addmm"].host_total_ns > 0
    assert bool(found.memory) == bool(options)
    assert bool(found.operators_by_shape) == bool(options)
