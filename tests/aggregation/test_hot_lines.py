"""Which lines of a section are named, and by what ran in them."""

from collections import Counter

import pytest

from tests.support.recording import FakeRun, section_stats
from training_profiler.aggregation.lines import is_known, lines_of, lines_with_loops, making_shares, phase_shares
from training_profiler.model.lines import UnsampledWait
from training_profiler.model.location import Location

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


METRIC = Location("train.py", 6, "update", inside="numpy/fromnumeric.py:2425 sum")
LOG = METRIC._replace(inside="wandb/run.py:5 Run.log > logging > wandb/q.py:3 put", phase="logging")
ENOUGH = {  # samples, and the place, the share and the phase of the line in other
    "a metric in steps and outside": (
        {"other": {METRIC: 50}, "(outside steps)": {METRIC: 20}},
        ("train.py:6", 0.5, ""),
    ),
    "a metric in steps and beside": (
        {"other": {METRIC: 50}, "validation_epoch": {METRIC: 20}},
        ("train.py:6", 0.5, ""),
    ),
    "a line that only logs": ({"other": {LOG: 50}}, ("train.py:6", 0.5, "logging")),
    "a line of one section": (
        {"other": {RESIZE: 40, RESIZE._replace(inside="PIL/Image.py:120 convert"): 10}},
        ("train.py:8", 0.5, ""),
    ),
    "a few samples of another section": ({"other": {RESIZE: 50}, "forward_pass": {RESIZE: 2}}, ("train.py:8", 0.5, "")),
}


@pytest.mark.parametrize(("samples", "expected"), ENOUGH.values(), ids=ENOUGH)
def test_a_line_of_the_program_says_enough_where_it_does_one_thing(samples, expected):
    counts = {section: Counter(lines) for section, lines in samples.items()}
    assert lines_with_loops(counts) == set()
    (line,) = lines_of(OTHER.share, counts["other"], set())
    assert (line.place, line.share, line.phase) == expected
    assert line.what == next(iter(samples["other"])).function


def test_a_line_with_phases_of_a_trainer_is_split_by_them():
    counts = {"other": Counter({STEP: 30, FLUSH: 12, RESIZE: 10})}
    lines = lines_of(OTHER.share, counts["other"], lines_with_loops(counts))
    assert [(line.place, line.what, line.phase) for line in lines] == [
        ("transformers/trainer.py:9", "Trainer._run_epoch > callback on_step_end", "callback on_step_end"),
        ("transformers/trainer.py:9", "Trainer._run_epoch > lib/log.py:3 flush", ""),
        ("train.py:8", "load", ""),
    ]


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


def test_batches_that_the_training_makes_are_divided_by_what_is_made():
    fetch, decode = (Location("data.py", 9, "__getitem__", making=part) for part in ("fetch", "decode"))
    training = Counter({TRAIN: 99, fetch: 10, decode: 20, None: 7})
    shares = making_shares({"data_loading": training, "validation_epoch/data_loading": Counter({decode: 10})})
    assert shares == {"fetch": 0.25, "decode": 0.75}
    assert making_shares({"data_loading": training - Counter({fetch: 1})}) == {}
    (line,) = lines_of(0.5, training - Counter({TRAIN: 99}), set())
    assert line.phase == "decode"


def test_batches_that_a_library_makes_have_its_functions_beside_the_users_line():
    inside = "datasets/arrow.py:9 get"
    library = TRAIN._replace(making="fetch", inside=inside, loaded_by=inside)
    own = Location("data.py", 9, "__getitem__", making="fetch", inside="pandas/frame.py:3 iloc")
    names = ("tokenizers.Tokenizer.encode", ""), ("tokenizers.get", ""), ("", "tiktoken/core.py:8 encode")
    texts = [own._replace(line=9 + at, called=called, inside=inside) for at, (called, inside) in enumerate(names)]
    tokenized = lines_of(0.5, Counter(dict.fromkeys(texts, 10)), set())
    assert [bool(line.packages) for line in tokenized] == [True, False, True]
    first, second = lines_of(0.5, Counter({library: 30, own: 20}), set())
    assert (first.place, first.caller, first.packages) == ("datasets/arrow.py:9", "train.py:30 main", {"datasets": 0.3})
    assert (second.place, second.inside, second.packages) == ("data.py:9", "", {"pandas": 0.2})


def test_a_wait_for_work_elsewhere_has_its_share_of_the_run_and_its_longest_line():
    run = FakeRun()
    first, second = (Location("train.py", line, "main", waits_for="a queue between processes") for line in (9, 30))
    for _ in range(4):
        with run.section("data_loading"):
            for location, times in ((first, 2), (second, 3), (Location("train.py", 9, "main"), 5)):
                run.sample_line(location, times)
                run.clock.advance(0.1 * times)
        run.step(forward_pass=1.0)
    (wait,) = run.snapshot().unsampled_waits
    assert wait == UnsampledWait("a queue between processes", "train.py:30 main", pytest.approx(0.25), 20)


def test_a_few_waits_for_work_elsewhere_may_be_chance():
    run = FakeRun()
    for _ in range(9):
        run.sample_line(Location("train.py", 9, "main", waits_for="a pool of threads or processes"))
        run.step(forward_pass=1.0)
    assert run.snapshot().unsampled_waits == ()


@pytest.mark.parametrize(
    ("of_train", "of_others", "expected"),
    [(11, 0, True), (10, 0, False), (24, 2, True), (14, 6, False), (15, 15, True), (12, 12, False), (0, 30, True)],
)
def test_lines_are_known_from_thirty_samples_on_or_from_fewer_of_the_same(of_train, of_others, expected):
    samples = Counter({TRAIN: of_train, **{TRAIN._replace(line=number): 1 for number in range(100, 100 + of_others)}})
    assert is_known(+samples) is expected


def test_samples_without_a_line_are_of_none():
    assert not is_known(Counter({None: 40}))
    assert not is_known(Counter())
    assert is_known(Counter({None: 20, TRAIN: 10}))
