from training_profiler.instrumentation.loop_detection.section_codes import SectionCodes, time_only
from training_profiler.recording.event_codes import DISCARDED, INFERRED, SECTION_MASK, TIME_ONLY
from training_profiler.recording.section_names import SectionNames


def test_code_is_the_section_id_with_the_inferred_bit():
    names = SectionNames()
    codes = SectionCodes(names)
    assert names.names[codes.forward & SECTION_MASK] == "forward_pass"
    assert codes.forward & INFERRED
    assert names.names[codes.validation & SECTION_MASK] == "validation_epoch"


def test_time_only_code_keeps_its_section():
    code = SectionCodes(SectionNames()).optimizer
    assert time_only(code) != code
    assert time_only(code) & SECTION_MASK == code & SECTION_MASK
    assert time_only(code) & TIME_ONLY


def test_code_bits_do_not_overlap_the_discarded_bit():
    code = time_only(SectionCodes(SectionNames()).checkpoint)
    assert (code + DISCARDED) % DISCARDED == code


def test_no_grad_calls_become_forward_passes_in_evaluation():
    codes = SectionCodes(SectionNames())
    assert codes.codes_in_evaluation == {
        codes.no_grad: codes.forward,
        -codes.no_grad: -codes.forward,
        time_only(codes.no_grad): time_only(codes.forward),
        -time_only(codes.no_grad): -time_only(codes.forward),
    }


def test_manual_section_names_keep_their_ids():
    names = SectionNames()
    id = names.id_of("forward_pass")
    assert SectionCodes(names).forward & SECTION_MASK == id
