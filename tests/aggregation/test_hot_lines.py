"""Which lines of a section are named, and by what ran in them."""

from collections import Counter

from tests.support.recording import section_stats
from training_profiler.aggregation.hot_lines import lines_of, lines_with_loops, phase_shares
from training_profiler.sampling.location import Location

OTHER = section_stats("other", 0.5)
LOOP = "transformers/trainer.py:9 Trainer._run_epoch"
TRAIN = Location("train.py", 30, "main")
FLUSH = TRAIN._replace(inside=f"{LOOP} > lib/log.py:3 flush")
STEP = TRAIN._replace(inside=f"{LOOP} > callback on_step_end", phase="callback on_step_end")
RESIZE = Location("train.py", 8, "load", inside="PIL/Image.py:99 resize")


def test_a_line_in_several_sections_says_nothing_so_its_library_is_shown():
    counts = {"other": Counter({FLUSH: 5}), "forward_pass": Counter({TRAIN._replace(inside="lib/net.py:4 net"): 5})}
    callers = lines_with_loops(counts)
    assert callers == {TRAIN}
    assert [(line.place, line.what, line.caller) for line in lines_of(OTHER.share, counts["other"], callers)] == [
        ("transformers/trainer.py:9", "Trainer._run_epoch > lib/log.py:3 flush", "train.py:30 main")
    ]


def test_a_line_that_only_logs_says_enough():
    log = Location("train.py", 6, "step", inside="wandb/run.py:5 Run.log > logging > wandb/q.py:3 put", phase="logging")
    assert lines_with_loops({"other": Counter({log: 50})}) == set()
    (line,) = lines_of(OTHER.share, Counter({log: 50}), set())
    assert (line.place, line.what, line.phase) == ("train.py:6", "step", "logging")


def test_a_line_of_one_section_says_enough():
    counts = {"other": Counter({RESIZE: 40, RESIZE._replace(inside="PIL/Image.py:120 convert"): 10})}
    assert lines_with_loops(counts) == set()
    (line,) = lines_of(OTHER.share, counts["other"], set())
    assert (line.place, line.what, line.share, line.inside) == ("train.py:8", "load", 0.5, "")


def test_a_line_with_phases_of_a_trainer_is_split_by_them():
    counts = {"other": Counter({STEP: 30, FLUSH: 12, RESIZE: 10})}
    lines = lines_of(OTHER.share, counts["other"], lines_with_loops(counts))
    assert [(line.place, line.what, line.phase) for line in lines] == [
        ("transformers/trainer.py:9", "Trainer._run_epoch > callback on_step_end", "callback on_step_end"),
        ("transformers/trainer.py:9", "Trainer._run_epoch > lib/log.py:3 flush", ""),
        ("train.py:8", "load", ""),
    ]


def test_a_few_samples_at_the_edge_of_a_section_do_not_count():
    counts = {"other": Counter({RESIZE: 50}), "forward_pass": Counter({RESIZE: 2})}
    assert lines_with_loops(counts) == set()


def test_phases_of_a_trainer_have_shares_of_the_run():
    logged = FLUSH._replace(phase="logging")
    counts = {
        "other": Counter({STEP: 30, logged: 15, None: 15}),
        "optimizer_step": Counter({logged: 25, STEP: 75}),
        "of_no_time": Counter({logged: 50}),
    }
    sections = {"other": OTHER, "optimizer_step": section_stats("optimizer_step", 0.25)}
    assert phase_shares(counts, sections) == {"callback on_step_end": 0.4375, "logging": 0.1875}


def test_a_phase_that_was_seen_seldom_has_no_share():
    assert phase_shares({"other": Counter({STEP: 9, None: 91})}, {"other": OTHER}) == {}
