"""Which treatments apply is decided from what a first run found; which are tried, from its findings."""

from dataclasses import replace
from pathlib import Path

from tests.support.golden import assert_golden
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


OF_INSTALLED = ("jemalloc", "tcmalloc", "no_scalars")  # which depend on the environment
BY_NAME = [each.name for each in TREATMENTS if each.name not in OF_INSTALLED]


def reasons(facts) -> dict[str, str]:
    return {each.name: reason for each in TREATMENTS if (reason := each.reason_not(facts)) is not None}


def names(*codes: str, facts=FACTS, applies=True) -> list[str]:
    found = suggested([Finding(code, "", {}, 0.0, "") for code in codes], facts)
    return [each.name for each in found if (each.reason_not(facts) is None) == applies]


def test_facts_are_those_of_the_trainings_loaders():
    assert FACTS.calls == (TRAINING, UPDATE)
    assert (FACTS.loader.name, FACTS.cores, FACTS.threads) == ("0", 4.0, 2)
    assert FACTS.validates_by_loader


def called(kind, name, *arguments):
    return {"calls": (CallFacts(kind, name, CallSite("train.py", 7), arguments),)}


def of_loader(**change):
    return {"loaders": (replace(LOADERS[0], **change),)}


# Of each, what does not apply for another reason than in FACTS, and what does.
OTHERS = {
    "an iterable data set": of_loader(is_map_style=False),
    "workers": of_loader(num_workers=2),
    "workers that are kept": of_loader(num_workers=2, persistent_workers=True),
    "workers of a loader that is made again": of_loader(num_workers=2, is_remade=True),
    "workers that prefetch": of_loader(num_workers=2, prefetch_factor=4),
    "a data set that returns batches": of_loader(fetches_batches=True),
    "a data set of the program": of_loader(data_set="Images"),
    "no loaders": {"loaders": ()},
    "a fused optimizer": {"optimizer": ADAM._replace(fused=True)},
    "an optimizer without a fused form": {"optimizer": ADAM._replace(has_fused=False)},
    "complex numbers": {"optimizer": ADAM._replace(dtypes=("complex64",))},
    "bfloat16": {"optimizer": ADAM._replace(dtypes=("bfloat16",))},
    "autocast": {"autocast": "float16"},
    "it compiles": {"is_compiled": True},
    "it compiles for any shape": called(COMPILE, "torch.compile", ("dynamic", "True")),
    "an accelerator": {"accelerator": "cuda"},
    "DDP": called(DDP, "DistributedDataParallel", ("static_graph", "True")),
    "gradients become zeros": called(ZERO_GRAD, "zero_grad"),
    "a validation": {"sections": frozenset(["validation_epoch"])},
}


def test_what_does_not_apply_says_why():
    plain = reasons(FACTS)
    texts = [
        "##### a loader without workers, and Adam\n",
        *(f"{name}: {plain[name]}\n" for name in BY_NAME if name in plain),
    ]
    for title, others in OTHERS.items():
        found = reasons(replace(FACTS, **others))
        changed = [name for name in BY_NAME if found.get(name) != plain.get(name)]
        texts += [f"##### {title}\n", *(f"{name}: {found.get(name, '(applies)')}\n" for name in changed)]
    assert_golden(Path(__file__).parents[1] / "golden" / "reports" / "treatments.txt", "".join(texts))


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
