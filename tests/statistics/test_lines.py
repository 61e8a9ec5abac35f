from training_profiler.model.snapshot import LineStats, Snapshot
from training_profiler.statistics.differences import line_of


def run_of(*lines, steps=100, wall_s=10.0):
    return Snapshot(steps=steps, wall_s=wall_s, lines={"data_loading": lines})


def test_the_function_with_most_of_the_difference_is_named_by_its_hottest_line():
    before = run_of(
        LineStats("/a/app/data.py", 10, "load", 0.20, 200), LineStats("/a/app/data.py", 50, "crop", 0.10, 100)
    )
    after = run_of(
        LineStats("/b/app/data.py", 52, "crop", 0.30, 300),
        LineStats("/b/app/data.py", 11, "load", 0.20, 200),
        LineStats("/b/app/data.py", 53, "crop", 0.10, 100),
    )
    line = line_of(before, after, "data_loading", 0.03)
    assert (line.file, line.line, line.function) == ("/b/app/data.py", 52, "crop")
    assert round(line.seconds, 6) == 0.03


def test_in_a_faster_run_it_is_the_line_that_went():
    before = run_of(LineStats("/a/app/data.py", 10, "load", 0.50, 500))
    line = line_of(before, run_of(), "data_loading", -0.05)
    assert (line.line, round(line.seconds, 6)) == (10, -0.05)


def test_a_difference_within_the_noise_of_samples_names_no_line():
    before = run_of(LineStats("/a/app/data.py", 10, "load", 0.20, 20))
    after = run_of(LineStats("/a/app/data.py", 10, "load", 0.25, 25))
    assert line_of(before, after, "data_loading", 0.005) is None
    assert line_of(run_of(), run_of(), "data_loading", 0.01) is None
