import pytest

from training_profiler.base.errors import SettingsError
from training_profiler.settings.settings import read_settings
from training_profiler.torch_capture.plan import CapturePlan, read_plan

VARIABLE = "RECTIFIED_FLOW_PROFILE_CAPTURE"


@pytest.mark.parametrize(
    ("text", "plan"),
    [
        ("steps=100-103", CapturePlan(steps=((100, 103),))),
        ("steps=100", CapturePlan(steps=((100, 100),))),
        ("steps=5-6, steps=20-29", CapturePlan(steps=((5, 6), (20, 29)))),
        ("every=1000", CapturePlan(every=1000)),
        ("outlier", CapturePlan(outlier=True)),
        (
            "outlier,every=500,length=2,windows=9,seconds=1.5,megabytes=20,memory_gib=0.5",
            CapturePlan((), 500, True, 2, 9, 1.5, 20.0, 0.5),
        ),
        ("windows=1", CapturePlan(windows=1)),
    ],
)
def test_text_of_a_plan_is_read(text, plan):
    assert read_settings(environ={VARIABLE: text}).capture == plan
    assert read_settings({"capture": text}, environ={}).capture == plan


@pytest.mark.parametrize(
    "text", ["100-103", "steps=", "steps=1-4", "steps=9-3", "every=0", "outlier=3", "length=2.5", "seconds=inf", ","]
)
def test_a_wrong_plan_is_an_error_that_names_variable_value_and_an_example(text):
    with pytest.raises(SettingsError) as raised:
        read_settings(environ={VARIABLE: text})
    assert str(raised.value).startswith(f"{VARIABLE}={text!r} ")
    assert "example: steps=100-103" in str(raised.value)


def test_plan_object_is_returned_unchanged_and_by_default_nothing_opens_a_window():
    assert read_plan(CapturePlan(every=3)) == CapturePlan(every=3)
    assert read_settings(environ={}).capture.is_empty
