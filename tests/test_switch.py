import pytest

from training_profiler.errors import SettingsError
from training_profiler.switch import SWITCH, is_switched_on


def test_profiling_is_off_unless_asked_for(monkeypatch):
    monkeypatch.delenv(SWITCH, raising=False)
    assert is_switched_on() is False


@pytest.mark.parametrize("word", ["1", "true", "yes", "on", "True", " ON "])
def test_these_words_switch_it_on(monkeypatch, word):
    monkeypatch.setenv(SWITCH, word)
    assert is_switched_on() is True


@pytest.mark.parametrize("word", ["0", "false", "no", "off", "", " ", "OFF"])
def test_these_words_leave_it_off(monkeypatch, word):
    monkeypatch.setenv(SWITCH, word)
    assert is_switched_on() is False


def test_any_other_word_is_told_with_all_that_would_do(monkeypatch):
    monkeypatch.setenv(SWITCH, "maybe")
    with pytest.raises(SettingsError) as error:
        is_switched_on()
    assert str(error.value) == (
        "RECTIFIED_FLOW_PROFILE='maybe' is neither on (1, true, yes, on) nor off (0, false, no, off); "
        "example: RECTIFIED_FLOW_PROFILE=1"
    )
