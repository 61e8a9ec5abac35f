import pytest

from tests.support.stacks import ASKED_NS, frame, stacks_of, training_at
from training_profiler.reports.hang import groups_of, render_stacks, waits_for, where_text
from training_profiler.snapshot.ranks import ThreadStack

GATHER = "torch/distributed/distributed_c10d.py:3 all_reduce"
QUEUE = ("torch/utils/data/dataloader.py:5 _MultiProcessingDataLoaderIter._try_get_data", "queue.py:6 Queue.get")


def in_backward(rank):
    return stacks_of(rank, training_at("train.py:88 train", section="backward_pass", since_s=60.0))


def loading(rank, host="node1"):
    return stacks_of(rank, training_at("data.py:41 __getitem__", section="data_loading", since_s=58.0), host=host)


MEETING = [stacks_of(rank, training_at("train.py:5 meet", GATHER)) for rank in (0, 1)]
REPLAYING = [stacks_of(rank, training_at("train.py:88 train", section="graph_replay", since_s=60.0)) for rank in (0, 1)]


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        (
            [in_backward(0), in_backward(1), loading(2), in_backward(3)],
            "rank 2 (node1) at data.py:41 __getitem__ (in data_loading); "
            "ranks 0-1, 3 at train.py:88 train (in backward_pass), which may wait for rank 2",
        ),
        (
            [*REPLAYING, loading(2)],
            "rank 2 (node1) at data.py:41 __getitem__ (in data_loading); "
            "ranks 0-1 at train.py:88 train (in graph_replay), which may wait for rank 2",
        ),
        (  # those in a collective come last, even if they are few
            [MEETING[0], loading(1), loading(2)],
            "ranks 1-2 at data.py:41 __getitem__ (in data_loading); "
            "rank 0 (node0) at train.py:5 meet, waiting for ranks 1-2",
        ),
        (MEETING, "all 2 ranks that answered at train.py:5 meet, waiting for the other ranks"),
    ],
)
def test_ranks_that_are_elsewhere_come_first_and_the_others_may_wait_for_them(ranks, text):
    assert where_text(ranks, is_alone=False) == text


def test_training_of_one_rank_has_its_line_and_what_it_waits_for():
    alone = stacks_of(0, training_at("train.py:5 main", *QUEUE, section="data_loading"))
    assert where_text([alone], is_alone=True) == (
        "train.py:5 main (in data_loading), waiting for the workers of a DataLoader"
    )


def test_many_places_are_cut_and_counted():
    ranks = [stacks_of(rank, training_at(f"train.py:{rank} train")) for rank in range(9)]
    assert where_text(ranks, is_alone=False).endswith("; 5 more ranks at 5 other places")


@pytest.mark.parametrize(
    ("frames", "expected"),
    [
        (("subprocess.py:1 Popen.wait",), "a child process"),
        (("threading.py:7 Event.wait",), "another thread"),
        (("threading.py:7 Thread.run", "lib/a.py:3 compute"), ""),  # every thread runs that
        (("mythreading.py:7 wait",), ""),
        (("torch/nn/linear.py:3 forward",), ""),
        (("socket.py:7 SocketIO.readinto",), "the network"),
    ],
)
def test_what_a_thread_waits_for_is_read_from_the_frames_below_the_users_line(frames, expected):
    assert waits_for(training_at("train.py:88 train", *frames)) == expected


def test_a_frame_above_the_users_line_does_not_wait():
    thread = ThreadStack("x", (frame("threading.py:3 wait", is_users=False), frame("train.py:9 work")))
    assert waits_for(thread) == ""


def test_training_thread_that_has_ended_is_said():
    assert groups_of([stacks_of(0, ThreadStack("other", ()))])[0].place.line == "a training thread that has ended"


def test_stacks_of_equal_ranks_are_printed_once_and_fit_80_columns():
    helper = ThreadStack("pin_memory", tuple(frame(f"threading.py:{i} wait", is_users=False) for i in range(9)))
    ranks = [
        stacks_of(rank, training_at("train.py:88 train", section="backward_pass", since_s=60.0 + rank), helper)
        for rank in (0, 1)
    ]
    text = render_stacks([*ranks, loading(2)], 4, ["Rank 3 has ended (process 103 on node1)"], ASKED_NS / 1e9 + 30)
    assert max(map(len, text.splitlines())) <= 80
    title, *lines = text.splitlines()
    assert title.startswith("Stacks of 3 of 4 ranks at 20")
    assert title.endswith(", 30 s ago")
    assert lines == [
        "",
        "Rank 2 (node1) at data.py:41 __getitem__ (in data_loading)",
        "Ranks 0-1 at train.py:88 train (in backward_pass), which may wait for rank 2",
        "Rank 3 has ended (process 103 on node1)",
        "",
        "Rank 2, process 102 on node1, after 1200 steps",
        "  training thread MainThread, in data_loading since 58 s:",
        "    train.py:9 <module>",
        "    data.py:41 __getitem__",
        "",
        "Ranks 0-1, process 100 on node0 (the first of them), after 1200 steps",
        "  training thread MainThread, in backward_pass since 60 s:",
        "    train.py:9 <module>",
        "    train.py:88 train",
        "  thread pin_memory, waiting for another thread:",
        "    threading.py:6 wait",
        "    threading.py:7 wait",
        "    threading.py:8 wait",
    ]
