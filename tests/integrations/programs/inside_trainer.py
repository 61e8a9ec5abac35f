"""A training by ``hugging-face`` or ``lightning`` with the causes of lost time that its arguments name.

``alike`` has what looks like them: tokens of number 0, a hook made once, losses without graphs, cheap callbacks.
"""

import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset
from transformers import PreTrainedTokenizerFast

TRAINER, *CAUSES = sys.argv[1:]
EPOCHS, COUNT, BATCH, WIDTH = 25, 128, 16, 32
LENGTHS = (8 + torch.randint(25, (COUNT,), generator=torch.Generator().manual_seed(0))).tolist()
words = Tokenizer(models.WordLevel({f"word{number}": number for number in range(500)}, unk_token="word0"))
words.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="word0")


class Texts(Dataset):
    def __init__(self):
        self.texts = [
            " ".join(f"word{1 + (7 * at + each) % 499}" for each in range(LENGTHS[at])) for at in range(COUNT)
        ]
        self.ids = [tokenizer(text)["input_ids"] for text in self.texts]

    def __len__(self):
        return COUNT

    def __getitem__(self, at):
        ids = self.ids[at]
        if "tokenizer" in CAUSES:
            ids = tokenizer(self.texts[at] + " " * 12_000)["input_ids"]
        if "padding" in CAUSES:
            return {"input_ids": ids + [0] * (96 - len(ids)), "attention_mask": [1] * len(ids) + [0] * (96 - len(ids))}
        ids = ids + [0] * 32 if "alike" in CAUSES else 4 * ids
        return {"input_ids": ids[:32], "attention_mask": [1] * 32}


def collate(rows):
    return {name: torch.tensor([row[name] for row in rows]) for name in rows[0]}


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(500, WIDTH, padding_idx=None if "alike" in CAUSES else 0)
        self.layer, self.head = nn.TransformerEncoderLayer(WIDTH, 4, 64, 0.0, batch_first=True), nn.Linear(WIDTH, 2)
        self.kept, self.spreads, self.losses = self.make_mask(32), [], []
        if "alike" in CAUSES:
            self.head.register_forward_hook(lambda module, inputs, output: self.spreads.append(output.detach().mean()))

    def make_mask(self, length):
        mask = torch.zeros(length, length)
        for row in range(length):
            for column in range(row + 1, length):
                mask[row, column] = -1e9
        return mask

    def forward(self, input_ids, attention_mask):
        mask = None
        if "mask" in CAUSES:
            mask = self.make_mask(input_ids.shape[1])
        elif input_ids.shape[1] == 32:
            mask = self.kept
        if "hooks" in CAUSES:
            self.layer.register_forward_hook(lambda module, inputs, output: self.spreads.append(spread_of(output)))
        hidden = self.layer(self.table(input_ids), mask, None if mask is not None else attention_mask == 0)
        logits = self.head(hidden.mean(1))
        loss = F.cross_entropy(logits, input_ids[:, 0] % 2)
        if "alike" in CAUSES:
            self.losses.append(loss.detach())
        return {"loss": loss, "logits": logits}


def spread_of(output):
    return [float(output.std()), float(output.mean()), float(output.abs().max())]


def end_epoch():
    if "epoch-end" not in CAUSES:
        return
    with Path("history.txt").open("w") as file:
        for row in range(60_000):
            file.write(f"{row},{row * 0.5:.3f}\n")


def optimizer_of(model):
    return torch.optim.AdamW((model.head if "unused" in CAUSES else model).parameters(), 1e-4)


def hugging_face(model):
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Ends(TrainerCallback):
        def on_epoch_end(self, args, state, control, **others):
            end_epoch()

        def on_step_end(self, args, state, control, **others):
            model.head.weight.detach().norm()

    arguments = TrainingArguments(
        "out",
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=BATCH,
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
        report_to="none",
        remove_unused_columns=False,
    )
    trainer = Trainer(
        model, arguments, collate, Texts(), callbacks=[Ends()] if {"epoch-end", "alike"}.intersection(CAUSES) else []
    )
    trainer.optimizer = optimizer_of(model)
    trainer.train()


def lightning(model):
    import lightning

    class Ends(lightning.Callback):
        def on_train_epoch_end(self, trainer, module):
            end_epoch()

        def on_train_batch_end(self, trainer, module, *others):
            model.head.weight.detach().norm()

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = model

        def training_step(self, batch):
            return self.model(**batch)["loss"]

        def configure_optimizers(self):
            return optimizer_of(model)

    trainer = lightning.Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        callbacks=[Ends()] if {"epoch-end", "alike"}.intersection(CAUSES) else [],
    )
    workers = 2 * ("workers" in CAUSES)
    trainer.fit(Module(), DataLoader(Texts(), BATCH, shuffle=True, collate_fn=collate, num_workers=workers))


torch.manual_seed(0)
torch.set_num_threads(1)
{"hugging-face": hugging_face, "lightning": lightning}[TRAINER](Classifier())
