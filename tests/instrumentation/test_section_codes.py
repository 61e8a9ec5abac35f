from training_profiler.instrumentation.loop_detection.section_codes import SectionCodes, time_only
from training_profiler.recording.event_codes import DISCARDED, INFERRED, SECTION_MASK, TIME_ONLY
from training_profiler.recording.section_names import SectionNames


def test_a_code_is_the_id_of_its_section_marked_as_inferred():
    names = SectionNames()
    codes = SectionCodes(names)
    assert names.names[codes.forward & SECTION_MASK] == "forward_pass"
    assert codes.forward & INFERRED
    assert names.names[codes.validation & SECTION_MASK] == "validation_epoch"


def test_uncounted_time_has_a_code_of_its_own_for_the_same_section():
    code = SectionCodes(SectionNames()).optimizer
    assert time_only(code) != code
    assert time_only(code) & SECTION_MASK == code & SECTION_MASK
    assert time_only(code) & TIME_ONLY


def test_marks_leave_room_for_that_of_a_cancelled_exit():
    code = time_only(SectionCodes(SectionNames()).checkpoint)
    assert (code + DISCARDED) % DISCARDED == code


def test_within_evaluation_calls_without_gradient_are_forward_passes():
    codes = SectionCodes(SectionNames())
    assert codes.codes_in_evaluation == {
        codes.no_grad: codes.forward,
        -codes.no_grad: -codes.forward,
        time_only(codes.no_grad): time_only(codes.forward),
        -time_only(codes.no_grad): -time_only(codes.forward),
    }


def test_names_that_the_program_uses_by_hand_keep_their_ids():
    names = SectionNames()
    id = names.id_of("forward_pass")
    assert SectionCodes(names).forward & SECTION_MASK == id
