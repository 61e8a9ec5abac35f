"""A language of few words, with the tokenizer and the tiny models that the Hugging Face programs train on it."""

import torch
from tally import Tally
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, PrinterCallback

WORDS = ["<pad>", "<eos>", "<unk>", "held", "out", *[f"word{number}" for number in range(27)]]


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer with one token a word."""
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", model_max_length=16
    )


def make_texts(count: int, first_word: str) -> list[str]:
    """Return sentences of 4 to 9 words after ``first_word``, the same at every call."""
    generator = torch.Generator().manual_seed(count)
    lengths = torch.randint(4, 10, (count,), generator=generator)
    numbers = [torch.randint(27, (int(length),), generator=generator) for length in lengths]
    return [" ".join([first_word, *[f"word{number}" for number in sentence.tolist()]]) for sentence in numbers]


class CountedCollator:
    """Counts the batches that ``collate`` makes; those that begin with "held" belong to an evaluation."""

    def __init__(self, tally: Tally, collate) -> None:
        self.tally, self.collate = tally, collate

    def __call__(self, items):
        if items[0]["input_ids"][0] == WORDS.index("held"):
            self.tally.add("validation_epoch/data_loading")
        else:
            self.tally.data_loading += 1
        return self.collate(items)


class CountedLosses:
    """A trainer that prints each loss and counts the backwards from it; mix it in before the trainer's class."""

    def __init__(self, tally: Tally, **arguments) -> None:
        super().__init__(**arguments)
        self.tally = tally
        self.data_collator = CountedCollator(tally, self.data_collator)
        self.remove_callback(PrinterCallback)  # it prints the duration of the training

    def compute_loss(self, *arguments, return_outputs: bool = False, **options):
        result = super().compute_loss(*arguments, return_outputs=return_outputs, **options)
        loss = result[0] if return_outputs else result
        print(f"loss {self.tally.watch(loss).item().hex()}")
        return result

    def print_log(self) -> None:
        """Print the losses and norms that the trainer itself logged."""
        for entry in self.state.log_history:
            values = [f"{name} {entry[name].hex()}" for name in ("loss", "grad_norm", "eval_loss") if name in entry]
            print(f"step {entry['step']}", *values)


def make_model(tally: Tally) -> LlamaForCausalLM:
    """Return a tiny Llama with random weights that counts its forwards, by a hook: TRL replaces its ``forward``."""
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(WORDS),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=32,
            attention_dropout=0.1,
            pad_token_id=0,
            eos_token_id=1,
            bos_token_id=1,
        )
    )

    model.register_forward_hook(lambda *_: tally.forward())
    return model
