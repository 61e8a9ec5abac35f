"""Recurrent layers that get one step of a sequence a call are found in early steps of real torch."""

import pytest
import torch
from torch import nn

STEPS, BATCH, LENGTH, WIDTH = 30, 3, 12, 8


class Loop(nn.Module):
    """A recurrent layer or cell called for each step, and layers around it."""

    def __init__(self, kind=nn.GRU, layers=1):
        super().__init__()
        self.words, self.last = nn.Embedding(20, WIDTH), nn.Linear(WIDTH, 20)
        cell = {} if issubclass(kind, nn.RNNCellBase) else {"batch_first": True}
        self.inner = nn.ModuleList(kind(WIDTH, WIDTH, **cell) for _ in range(layers))

    def advance(self, x, states):
        """Return the output of a step, whatever the layer is."""
        for at, layer in enumerate(self.inner):
            if isinstance(layer, nn.RNNCellBase):
                states[at] = layer(x, states[at])
                x = states[at][0] if isinstance(layer, nn.LSTMCell) else states[at]
            else:
                out, states[at] = layer(x.unsqueeze(1), states[at])
                x = out.squeeze(1)
        return x

    def forward(self, tokens):
        states, words = [None] * len(self.inner), (self.words(tokens[:, at]) for at in range(LENGTH))
        return torch.stack([self.last(self.advance(each, states)) for each in words], 1)


class Training:
    def __init__(self, instrumented):
        self.instrumented = instrumented

    def run(self, model, loss_of=None, steps=STEPS):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loss_of = loss_of or (lambda tokens: model(tokens).square().mean())
        facts = self.instrumented.train(optimizer, lambda: loss_of(torch.randint(20, (BATCH, LENGTH))), steps)
        hooks = nn.modules.module
        assert not hooks._global_forward_hooks
        assert not hooks._global_forward_pre_hooks
        return facts.recurrent


@pytest.fixture
def training(instrumented):
    torch.manual_seed(0)
    return Training(instrumented)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM, nn.RNN, nn.GRUCell, nn.LSTMCell, nn.RNNCell])
def test_a_layer_with_a_call_for_each_step_is_found(training, kind, layers):
    facts = training.run(Loop(kind, layers))
    assert (facts.kind, facts.calls, facts.is_known) == (kind.__name__, layers * LENGTH, True)
    assert facts.work == BATCH * WIDTH * 2 * WIDTH
    assert 0 < facts.part < facts.loop <= 1


class Whole(Loop):
    def forward(self, tokens):
        return self.last(self.inner[0](self.words(tokens))[0])


class Packed(Loop):
    def forward(self, tokens):
        packed = nn.utils.rnn.pack_padded_sequence(self.words(tokens), [LENGTH] * BATCH, batch_first=True)
        return self.last(nn.utils.rnn.pad_packed_sequence(self.inner[0](packed)[0], batch_first=True)[0])


class FewSteps(Loop):
    """As a graph network that passes messages, or layers side by side."""

    def forward(self, tokens):
        states = [None]
        for at in range(3):
            out = self.advance(self.words(tokens[:, at]), states)
        return self.last(out)


class WithoutState(Loop):
    def forward(self, tokens):
        return torch.stack([self.advance(self.words(tokens[:, at]), [None]) for at in range(LENGTH)])


@pytest.mark.parametrize("kind", [Whole, Packed, FewSteps, WithoutState])
def test_other_layers_are_not(training, kind):
    assert training.run(kind()) is None


class Fed(Loop):
    """Computes the input of a step from the step before, and may change the state."""

    def __init__(self, following, changed):
        super().__init__()
        self.following, self.changed = following, changed

    def forward(self, tokens):
        states, rows, x = [None], [], self.words(tokens[:, 0])
        for at in range(LENGTH):
            out = self.advance(x, states)
            rows.append(self.last(out))
            states[0] = self.changed(states[0], tokens[:, at])
            x = self.following(self, tokens, at, out)
        return torch.stack(rows, 1)


def word(model, tokens, at, out):
    return model.words(tokens[:, (at + 1) % LENGTH])


def chosen(model, tokens, at, out):
    return model.words(model.last(out).argmax(1))


def chosen_at_times(model, tokens, at, out):
    """As scheduled sampling does."""
    return word(model, tokens, at, out) if at % 3 else model.words(model.last(out).topk(1)[1].squeeze(1).detach())


def attention_over_the_state(model, tokens, at, out):
    words = model.words(tokens)
    return word(model, tokens, at, out) + ((words @ out.unsqueeze(2)).softmax(1) * words).sum(1)


@pytest.mark.parametrize(
    ("following", "changed", "is_known"),
    [
        (word, lambda state, tokens: state, True),
        (chosen, lambda state, tokens: state, False),
        (chosen_at_times, lambda state, tokens: state, False),
        (attention_over_the_state, lambda state, tokens: state, False),
        (lambda model, tokens, at, out: out, lambda state, tokens: state, False),
        (lambda model, tokens, at, out: out.detach(), lambda state, tokens: state, False),  # unknown to autograd
        (word, lambda state, tokens: state * (tokens > 0).float()[None, :, None], False),  # kept past the end
        (word, lambda state, tokens: nn.functional.dropout(state, 0.1), False),
    ],
)
def test_inputs_that_may_depend_on_outputs_are_not_known_before(training, following, changed, is_known):
    assert training.run(Fed(following, changed)).is_known is is_known


class Context(Loop):
    """Has a context of the encoder."""

    def forward(self, tokens):
        context, states = self.words(tokens).mean(1), [None]
        words = (self.words(tokens[:, at]) + context for at in range(LENGTH))
        return torch.stack([self.last(self.advance(each, states)) for each in words], 1)


class Numbers(Loop):
    """Has no words: its inputs are a part of the batch."""

    def forward(self, tokens):
        numbers, states = tokens.float().unsqueeze(2).expand(-1, -1, WIDTH), [None]
        return torch.stack([self.last(self.advance(numbers[:, at], states)) for at in range(LENGTH)], 1)


class Both(nn.Module):
    """An encoder and a decoder, with sequences of their own."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = Loop(), Loop()

    def forward(self, tokens):
        words, states = self.encoder.words(tokens), [None]
        for at in range(LENGTH):
            self.encoder.advance(words[:, at], states)
        rows = [self.decoder.advance(self.decoder.words(tokens[:, at]), states) for at in range(LENGTH)]
        return self.decoder.last(torch.stack(rows, 1))


@pytest.mark.parametrize(("model", "calls"), [(Context(), LENGTH), (Numbers(), LENGTH), (Both(), 2 * LENGTH)])
def test_inputs_that_depend_on_the_batch_alone_are_known_before(training, model, calls):
    facts = training.run(model)
    assert (facts.calls, facts.is_known) == (calls, True)


@pytest.mark.parametrize("is_known", [True, False])
def test_a_loop_around_the_model_is_found(training, is_known):
    class Decoder(Loop):
        def forward(self, token, state):
            out, state = self.inner[0](nn.functional.relu(self.words(token)).unsqueeze(1), state)
            return self.last(out.squeeze(1)), state

    decoder = Decoder()

    def loss_of(tokens):
        state, loss, token = torch.zeros(1, BATCH, WIDTH), 0.0, torch.zeros(BATCH, dtype=torch.long)
        for at in range(LENGTH):
            out, state = decoder(token, state)
            loss = loss + nn.functional.cross_entropy(out, tokens[:, at])
            token = tokens[:, at] if is_known else out.argmax(1)
        return loss

    facts = training.run(decoder, loss_of)
    assert (facts.calls, facts.is_known, facts.loop) == (LENGTH, is_known, pytest.approx(1.0))


def test_losses_stay(training):
    def losses():
        torch.manual_seed(1)
        model, values = Loop(nn.LSTMCell), []

        def loss_of(tokens):
            loss = model(tokens).square().mean()
            values.append(loss.item())
            return loss

        training.run(model, loss_of)
        return values

    first = losses()
    assert first == losses()


def test_compiled_models_get_no_hooks(training, monkeypatch):
    model = Loop()
    monkeypatch.setattr(model, "_compiled_call_impl", model._call_impl)
    assert training.run(model) is None
