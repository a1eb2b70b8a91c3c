import torch
from torch import nn
from torch.nn import functional as F

from fafed.models import LSTMLanguageModel


def tiny(**options):
    torch.manual_seed(0)
    return LSTMLanguageModel(**{"vocabulary": 7, "embedding": 4, "hidden": 5} | options)


def test_parameters():
    with torch.device("meta"):  # 50 million: only their shapes
        model = LSTMLanguageModel()
    assert sum(p.numel() for p in model.parameters()) == 50_065_078


def test_initialisation():
    model = tiny(vocabulary=1000)
    for weight in (model.embedding.weight, model.decoder.weight):
        assert 0.09 < weight.abs().max() <= 0.1
    assert not model.decoder.bias.any()


def test_shapes_and_state():
    model = tiny().double()
    state = model.initial_state(3)
    assert all(s.shape == (2, 3, 5) and s.dtype == torch.float64 and not s.any() for s in state)
    logits, state = model(torch.randint(7, (3, 6)), state)
    assert logits.shape == (3, 6, 7)
    assert all(s.shape == (2, 3, 5) for s in state)


def test_the_state_carries_on():
    model = tiny(dropout=0.0)
    tokens = torch.randint(7, (3, 6))
    whole, end = model(tokens, model.initial_state(3))
    first, state = model(tokens[:, :4], model.initial_state(3))
    second, state = model(tokens[:, 4:], state)
    assert torch.allclose(whole, torch.cat([first, second], 1), atol=1e-6)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(end, state, strict=True))


def test_equals_the_stacked_lstm_of_torch():
    model = tiny(dropout=0.0, layers=2)
    stacked = nn.LSTM(4, 5, num_layers=2, batch_first=True)
    stacked.load_state_dict(
        {
            name.replace("_l0", f"_l{i}"): value
            for i, layer in enumerate(model.layers)
            for name, value in layer.state_dict().items()
        }
    )
    tokens = torch.randint(7, (3, 6))
    expected = model.decoder(stacked(model.embedding(tokens))[0])
    assert torch.allclose(model(tokens, model.initial_state(3))[0], expected, atol=1e-6)


def test_dropout_is_an_ordinary_call(monkeypatch):
    calls = []

    def counted(x, *args, **kwargs):
        calls.append(tuple(x.shape))
        return x

    monkeypatch.setattr(F, "dropout", counted)
    model = tiny(layers=3)
    model(torch.randint(7, (2, 6)), model.initial_state(2))
    assert calls == [(2, 6, 4), (2, 6, 5), (2, 6, 5), (2, 6, 5)]


def test_computes_its_loss_itself():
    model = tiny(vocabulary=1200, dropout=0.0).double()
    tokens, targets = torch.randint(1200, (2, 3, 6))
    logits, state = model(tokens, model.initial_state(3))
    loss, same_state = model(tokens, model.initial_state(3), targets=targets)
    torch.testing.assert_close(loss, model.computes(logits, targets))
    assert all(torch.equal(a, b) for a, b in zip(state, same_state, strict=True))
