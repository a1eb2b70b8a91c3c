import torch

from fafed.models import CharLSTM


def test_shapes():
    model = CharLSTM()
    assert sum(p.numel() for p in model.parameters()) == 819_920
    assert model(torch.zeros(3, 80, dtype=torch.int64)).shape == (3, 80)


def test_all_characters_count():
    torch.manual_seed(0)
    model = CharLSTM(5, 3, 4)
    one = torch.tensor([[0, 1, 2, 3]])
    other = torch.tensor([[4, 1, 2, 3]])
    assert not torch.equal(model(one), model(other))
