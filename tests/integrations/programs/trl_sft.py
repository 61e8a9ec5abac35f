"""TRL's SFTTrainer on sentences that it tokenizes itself: accumulation, evaluations, a checkpoint, stop by steps."""

import transformers
from datasets import Dataset, disable_progress_bars
from tally import Tally, updates
from trl import SFTConfig, SFTTrainer
from words import CountedLosses, make_model, make_texts, make_tokenizer

disable_progress_bars()
transformers.set_seed(0)
tally = Tally()
model = make_model(tally)


class CountedTrainer(CountedLosses, SFTTrainer):
    """The SFTTrainer, counted."""


trainer = CountedTrainer(
    tally,
    model=model,
    args=SFTConfig(
        output_dir="out",
        max_steps=9,
        per_device_train_batch_size=4,
        per_device_eval_batch_size=4,
        gradient_accumulation_steps=2,
        learning_rate=1e-2,
        max_length=16,
        eval_strategy="steps",
        eval_steps=4,
        save_strategy="steps",
        save_steps=5,
        logging_steps=1,
        bf16=False,
        use_cpu=True,
        disable_tqdm=True,
        report_to="none",
    ),
    train_dataset=Dataset.from_dict({"text": make_texts(52, "word0")}),
    eval_dataset=Dataset.from_dict({"text": make_texts(12, "held")}),
    processing_class=make_tokenizer(),
)
trainer.train()
trainer.print_log()
tally.steps = trainer.state.global_step
assert tally.steps == updates(trainer.optimizer)
tally.print()
