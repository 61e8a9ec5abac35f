"""Runs whose batches are mostly padding, and runs in which it costs little or may not go."""

from tests.diagnosis.test_program_rules import ADAM, CPU, run_with
from training_profiler.model.program import LOADER, CallFacts, CallSite, CompileFacts, PaddingFacts, ProgramFacts

LONG = PaddingFacts(24, 0.86, 0.91, 0.67, 0.84, 0.98, "padding_idx=0", "train.py:28 collate")
GROUPED = LONG._replace(padding=0.45, worst=0.6, to_longest=0.0, grouped=0.4, what="the mask")
FACTS = ProgramFacts(ADAM, cpu=CPU, operators=200, padding=LONG)
LOADERS = {
    name: CallFacts(LOADER, "DataLoader", CallSite("train.py", 51, inside=inside))
    for name, inside in (("own", ""), ("trainer", "transformers/trainer.py:812 get_train_dataloader"))
}


def padded(loader="own", facts=LONG, **others):
    return run_with(FACTS._replace(padding=facts, calls=(LOADERS[loader],), **others))


SAYS = {
    "padding": {
        "to the longest of the data set": padded(),
        "of a trainer": padded("trainer"),
        "to the longest of the batch": padded(facts=GROUPED),
        "to the longest of the batch, of a trainer": padded("trainer", GROUPED),
        "many small operators": padded(operators=12_000),
    },
}
SILENT = {
    "padding": {
        "nothing is known": run_with(FACTS._replace(padding=None)),
        "few positions": padded(facts=LONG._replace(padding=0.08, to_longest=0.06, grouped=0.08)),
        "hardly any operation has all positions": padded(facts=LONG._replace(part=0.05)),
        "only starting operators takes time": padded(operators=28_000),
        "what is left cannot go": padded(facts=LONG._replace(to_longest=0.0, grouped=0.0)),
        "compiled": padded(facts=None, compiled=CompileFacts(1, 1.0)),
    },
}
