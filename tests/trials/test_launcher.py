from training_profiler.trials.launcher import with_variables


def test_a_library_to_load_goes_before_those_of_the_user():
    found = with_variables({"LD_PRELOAD": "libmine.so", "A": "1"}, {"LD_PRELOAD": "libjemalloc.so", "B": "2"})
    assert found == {"LD_PRELOAD": "libjemalloc.so:libmine.so", "A": "1", "B": "2"}


def test_a_variable_of_a_change_wins():
    assert with_variables({"LD_PRELOAD": "", "A": "1"}, {"LD_PRELOAD": "x.so", "A": "2"}) == {
        "LD_PRELOAD": "x.so",
        "A": "2",
    }
