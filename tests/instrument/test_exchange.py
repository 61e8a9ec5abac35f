import pytest

from training_profiler.instrument.exchange import Exchange


class Module:
    """Stands for a DDP module, with its statistics of so many iterations and times in ns."""

    def __init__(self, iteration, comm_ns, overlap_ns):
        self.data = {
            "iteration": iteration,
            "avg_backward_comm_time": comm_ns,
            "avg_backward_compute_comm_overlap_time": overlap_ns,
        }

    def _get_ddp_logging_data(self):
        return self.data


@pytest.fixture
def exchange() -> Exchange:
    return Exchange()


def test_without_modules_there_is_nothing_to_say(exchange):
    exchange.read()
    assert exchange.total_ns() == 0
    assert exchange.note() is None


def test_a_module_that_has_not_exchanged_anything_is_not_worth_a_word(exchange):
    module = Module(0, 0, 0)
    exchange.watch(module)
    exchange.read()
    assert exchange.note() is None


def test_statistics_that_lack_a_name_say_nothing(exchange):
    module = Module(0, 0, 0)
    module.data = {}
    exchange.watch(module)
    exchange.read()
    assert exchange.note() is None


def test_the_time_is_that_of_all_iterations(exchange):
    module = Module(10, 3_000_000, 1_500_000)
    exchange.watch(module)
    exchange.read()
    assert exchange.total_ns() == 30_000_000
    assert exchange.note().startswith(
        "DDP exchanged gradients for 3.000 ms an iteration, 50% of it while gradients were computed"
    )


def test_what_is_read_later_takes_the_place_of_what_was_read_before(exchange):
    module = Module(10, 3_000_000, 0)
    exchange.watch(module)
    exchange.read()
    module.data["iteration"] = 20
    exchange.read()
    assert exchange.total_ns() == 60_000_000


def test_several_modules_are_summed_up(exchange):
    modules = Module(10, 2_000_000, 0), Module(30, 4_000_000, 4_000_000)
    for module in modules:
        exchange.watch(module)
    exchange.read()
    assert exchange.total_ns() == 140_000_000
    assert "3.500 ms an iteration, 86% of it" in exchange.note()


def test_a_module_that_is_gone_has_said_what_it_did(exchange):
    module = Module(10, 3_000_000, 0)
    exchange.watch(module)
    exchange.read()
    del module
    exchange.read()
    assert exchange.total_ns() == 30_000_000


def test_no_more_can_be_overlapped_than_there_was(exchange):
    module = Module(1, 1_000_000, 2_000_000)
    exchange.watch(module)
    exchange.read()
    assert "100% of it" in exchange.note()
