"""The Hugging Face Trainer: two micro-batches an update, fetched ahead of the first; evaluations; checkpoints."""

import transformers
from tally import Tally, updates
from transformers import DataCollatorForLanguageModeling, Trainer, TrainingArguments
from words import CountedLosses, make_model, make_texts, make_tokenizer

transformers.set_seed(0)
tokenizer = make_tokenizer()
tally = Tally()
model = make_model(tally)


def encode(texts: list[str]) -> list[dict[str, list[int]]]:
    return [{"input_ids": tokenizer(text)["input_ids"]} for text in texts]


class CountedTrainer(CountedLosses, Trainer):
    """The Trainer, counted."""


trainer = CountedTrainer(
    tally,
    model=model,
    args=TrainingArguments(
        output_dir="out",
        num_train_epochs=2,
        per_device_train_batch_size=4,
        per_device_eval_batch_size=4,
        gradient_accumulation_steps=2,
        learning_rate=1e-2,
        eval_strategy="steps",
        eval_steps=3,
        save_strategy="steps",
        save_steps=4,
        logging_steps=1,
        use_cpu=True,
        disable_tqdm=True,
        report_to="none",
    ),
    data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
    train_dataset=encode(make_texts(52, "word0")),
    eval_dataset=encode(make_texts(12, "held")),
)
trainer.train()
trainer.print_log()
tally.steps = trainer.state.global_step
assert tally.steps == updates(trainer.optimizer)
tally.print()
