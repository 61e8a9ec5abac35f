from tests.support.recording import snapshot_of
from training_profiler.reports.status import largest_sections, status_text


def test_status_has_step_pace_and_the_largest_sections() -> None:
    detail = largest_sections(snapshot_of({"forward_pass": 0.5, "data_loading": 0.3, "a": 0.1, "b": 0.06}))
    assert detail == "forward_pass 50%, data_loading 30%, a 10%"
    assert status_text(1240, 18.42, detail, 80) == f"Profiler: step 1240 | 18.4 steps/s | {detail}"


def test_status_is_shorter_than_the_terminal() -> None:
    assert status_text(1240, 18.42, "forward_pass 50%, data_loading 30%, a 10%", 75).endswith("data_loading 30%")
    assert len(status_text(1240, None, "x" * 100, 60)) == 59


def test_names_of_sections_are_whole_where_there_is_room() -> None:
    detail = largest_sections(snapshot_of({"validation_epoch/forward_pass": 0.7, "gradient_accumulation_sync": 0.3}))
    assert detail == "validation_epoch/forward_pass 70%, gradient_accumulation_sync 30%"
    assert largest_sections(snapshot_of({"other": 1.0})) == "unattributed (in step) 100%"
    text = status_text(12400, 18.42, detail, 80)
    assert text == "Profiler: step 12400 | 18.4 steps/s | validation_epoch/forward_pass 70%"
    assert status_text(12400, 18.42, detail, 60).endswith("forward_pass 70%")


def test_unknown_figures_are_left_out() -> None:
    assert status_text(3, None, "", 80) == "Profiler: step 3"
