"""Which treatments apply is decided from what a first run found; which are tried, from its findings."""

from dataclasses import replace

import pytest

from tests.support.recording import snapshot_of
from training_profiler.diagnosis.finding import Finding, Losses
from training_profiler.model.machine import MachineStats
from training_profiler.model.program import (
    COMPILE,
    DDP,
    LOADER,
    OPTIMIZER,
    ZERO_GRAD,
    CallFacts,
    CallSite,
    OptimizerFacts,
    ProgramFacts,
)
from training_profiler.model.snapshot import LoaderStats
from training_profiler.trials.treatment import facts_of
from training_profiler.trials.treatments import TREATMENTS, suggested

ADAM = OptimizerFacts("Adam", 20, ("float32",), ("cpu",), has_foreach=True, has_fused=True)
LOADERS = (
    LoaderStats("0", 90, 900, 5.0, data_avg_s=0.02, num_workers=0, persistent_workers=False, made_at="train.py:4"),
    LoaderStats("1", 9, 90, 0.5, phase="val", num_workers=0, made_at="train.py:8"),
)
TRAINING = CallFacts(LOADER, "DataLoader", CallSite("train.py", 4, "/w/train.py"), (("num_workers", "0"),))
VALIDATION = TRAINING._replace(site=CallSite("train.py", 8, "/w/train.py"))
UPDATE = CallFacts(OPTIMIZER, "Adam", CallSite("train.py", 9, "/w/train.py"), (("foreach", "None"), ("fused", "None")))
RUN = replace(
    snapshot_of({"data_loading": 0.5, "backward_pass": 0.5}),
    loaders=LOADERS,
    program=ProgramFacts(ADAM, calls=(TRAINING, VALIDATION, UPDATE), threads=2),
    machine=MachineStats(9, cores=4.0),
)
FACTS = facts_of(RUN)


def reasons(facts) -> dict[str, str]:
    return {each.name: reason for each in TREATMENTS if (reason := each.reason_not(facts)) is not None}


def names(*codes: str, facts=FACTS, applies=True) -> list[str]:
    found = suggested([Finding(code, "", {}, 0.0, "") for code in codes], facts)
    return [each.name for each in found if (each.reason_not(facts) is None) == applies]


def test_facts_are_those_of_the_trainings_loaders():
    assert FACTS.calls == (TRAINING, UPDATE)
    assert (FACTS.loader.name, FACTS.cores, FACTS.threads) == ("0", 4.0, 2)
    assert FACTS.validates_by_loader


def test_what_does_not_apply_says_why():
    found = reasons(FACTS)
    assert found["num_workers=8"] == "only 4 CPUs"
    assert found["persistent_workers"] == found["prefetch_factor=4"] == "the loader has no workers"
    assert found["pin_memory"] == "no accelerator"
    assert found["num_threads=2"] == "is set already"
    assert found["set_to_none"] == "no zero_grad(set_to_none=False)"
    assert found["static_graph"] == "no DistributedDataParallel"
    assert found["matmul_precision"] == "only for devices of CUDA"
    assert found["no_checkpoints"] == "no checkpoint was saved"
    assert {"num_workers=2", "fused", "foreach", "compile", "gc_freeze", "one_batch"} & found.keys() == set()


@pytest.mark.parametrize(
    ("change", "name", "reason"),
    [
        ({"is_map_style": False}, "num_workers=2", "an iterable data set may repeat its data in each worker"),
        ({"num_workers": 2}, "num_workers=2", "is set already"),
        ({"num_workers": 2, "persistent_workers": True}, "persistent_workers", "is set already"),
        ({"num_workers": 2, "is_remade": True}, "persistent_workers", "the program makes a new loader for each pass"),
        ({"num_workers": 2, "prefetch_factor": 4}, "prefetch_factor=4", "is set already"),
        ({"fetches_batches": True}, "batched", "torch uses the data set's __getitems__ already"),
        ({"data_set": "Images"}, "batched", "Images returns single samples"),
        ({"fused": True}, "fused", "is set already"),
        ({"fused": True}, "foreach", "the optimizer is fused"),
        ({"has_fused": False}, "fused", "Adam has no such form"),
        ({"dtypes": ("complex64",)}, "fused", "not for these parameters"),
        ({"dtypes": ("bfloat16",)}, "autocast", "no parameters in float32"),
    ],
)
def test_reasons_of_loaders_and_optimizers(change, name, reason):
    of_optimizer = change.keys() <= set(OptimizerFacts._fields)
    parts = {"optimizer": ADAM._replace(**change)} if of_optimizer else {"loaders": (replace(LOADERS[0], **change),)}
    assert reasons(replace(FACTS, **parts))[name] == reason


def test_reasons_of_programs():
    assert "num_workers=2" in reasons(replace(FACTS, loaders=()))
    assert reasons(replace(FACTS, is_compiled=True))["compile"] == "the program compiles already"
    assert reasons(replace(FACTS, autocast="float16"))["autocast"] == "autocast to float16 is on already"
    assert "compile_dynamic" not in reasons(replace(FACTS, is_compiled=True))
    dynamic = CallFacts(COMPILE, "torch.compile", CallSite("train.py", 7), (("dynamic", "True"),))
    assert reasons(replace(FACTS, calls=(dynamic,)))["compile_dynamic"] == "is set already"
    on_gpu = reasons(replace(FACTS, accelerator="cuda"))
    assert on_gpu["foreach"] == "is the default on accelerators"
    assert {
        "pin_memory",
        "matmul_precision",
        "cudnn_benchmark",
        "compile_mode=reduce-overhead",
    } & on_gpu.keys() == set()
    ddp = CallFacts(DDP, "DistributedDataParallel", CallSite("train.py", 1), (("static_graph", "True"),))
    of_ddp = reasons(replace(FACTS, calls=(ddp,)))
    assert of_ddp["static_graph"] == "is set already"
    assert "gradient_as_bucket_view" not in of_ddp
    zeros = CallFacts(ZERO_GRAD, "zero_grad", CallSite("train.py", 1))
    assert "set_to_none" not in reasons(replace(FACTS, calls=(zeros,)))
    assert "no_validation" not in reasons(replace(FACTS, sections=frozenset(["validation_epoch"])))


def test_findings_decide_what_is_tried_and_safe_ones_come_first():
    assert names("data-loading-bound")[:3] == ["num_workers=1", "num_workers=2", "num_workers=4"]
    assert names("data-loading-bound")[-1] == "one_batch"
    assert names("optimizer-heavy") == ["foreach", "fused"]
    assert names("memory-growth") == names("machine-busy") == names("healthy")
    order = [Losses.EXACT, Losses.EXACT_IF, Losses.CLOSE, Losses.CHANGES]
    tried = suggested(
        [Finding("forward-dominates", "", {}, 0.0, ""), Finding("optimizer-heavy", "", {}, 0.0, "")],
        replace(FACTS, accelerator="cuda"),
    )
    tried = [each for each in tried if each.reason_not(replace(FACTS, accelerator="cuda")) is None]
    assert [order.index(each.losses) for each in tried] == sorted(order.index(each.losses) for each in tried)


def test_kinds_that_do_not_apply_are_named_but_not_each_number_of_a_kind_that_does():
    found = names("loader-slow", applies=False)
    assert found == ["persistent_workers", "prefetch_factor=4", "prefetch_factor=8", "pin_memory", "batched"]
    assert names("optimizer-heavy", applies=False) == ["set_to_none"]


def test_edits_are_of_the_calls_that_are_treated():
    by_name = {each.name: each.edit(FACTS.calls) for each in TREATMENTS}
    assert [(edit.call, edit.arguments) for edit in by_name["num_workers=2"]] == [(TRAINING, (("num_workers", "2"),))]
    assert [(edit.call, edit.arguments) for edit in by_name["fused"]] == [(UPDATE, (("fused", "True"),))]
    assert [(edit.call, edit.statement) for edit in by_name["compile"]] == [
        (UPDATE, "{model}.forward = torch.compile({model}.forward)")
    ]
    (edit,) = by_name["compile_mode=reduce-overhead"]
    assert edit.statement == '{model}.forward = torch.compile({model}.forward, mode="reduce-overhead")'
    own = CallFacts(COMPILE, "torch.compile", CallSite("train.py", 7))
    (edit,) = next(each for each in TREATMENTS if each.name == "compile_dynamic").edit([UPDATE, own])
    assert (edit.call, edit.arguments) == (own, (("dynamic", "True"),))
    assert by_name["one_batch"] == by_name["jemalloc"] == []
    assert "random_" in by_name["persistent_workers"][0].note
