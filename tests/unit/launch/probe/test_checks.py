"""What is checked inside a rank on demand: finite losses and gradients, checksums of parameters."""

import copy
import pickle
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from paceline import counters
from paceline.errors import RunError
from paceline.launch.probe import checks
from paceline.launch.probe.checks import FiniteCheck, non_finite
from paceline.launch.probe.record_steps import checksums, combined
from paceline.machine.parameters import in_shards, names_of

NAN = float("nan")


@pytest.fixture
def slot():
    return memoryview(bytearray(counters.SLOT_BYTES)).cast("q")


class Rank:
    """A rank that trains with ``--check-finite``, without hooks that outlive the test."""

    def __init__(self, slot):
        self.net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.01)
        self.check = FiniteCheck(slot, 2)
        self.check.follow(self.net.parameters())
        self.optimizer.register_step_pre_hook(self.check.before_step)

    def backward(self, loss):
        self.optimizer.zero_grad()
        self.check.see_losses([loss])
        loss.backward()

    def loss(self):
        return self.net(torch.randn(5, 3)).square().mean()


@pytest.fixture
def trained(slot):
    slot[counters.STEPS] = 11
    return Rank(slot)


def test_what_is_finite_is_let_through(trained):
    before = trained.net[2].bias.clone()
    for _ in range(3):
        trained.backward(trained.loss())
        trained.optimizer.step()
    assert not torch.equal(before, trained.net[2].bias)


def test_a_loss_that_is_not_finite_is_named_and_its_step_not_made(trained):
    before = copy.deepcopy(trained.net.state_dict())
    trained.backward(trained.loss() * NAN)
    with pytest.raises(RunError) as caught:
        trained.optimizer.step()
    found = caught.value.finding
    assert found.what == "rank 2's loss is not finite in step 12"
    assert (found.name, found.where) == ("non-finite-on-one-rank", "rank 2, step 12")
    assert all(torch.equal(before[name], value) for name, value in trained.net.state_dict().items())


def test_the_gradient_that_was_first_in_backward_is_named(trained):
    spoilt = 0 * torch.sqrt(trained.net[0].bias - trained.net[0].bias).sum()
    trained.backward(trained.loss() + spoilt)
    with pytest.raises(RunError, match=r"rank 2's gradient of 0\.bias is not finite in step 12"):
        trained.optimizer.step()


def test_a_rank_that_was_spoilt_by_another_waits_and_is_not_blamed(trained, monkeypatch):
    waits = []
    monkeypatch.setattr(checks, "time", SimpleNamespace(sleep=waits.append))
    trained.backward(trained.loss())
    trained.net[2].weight.grad.fill_(NAN)  # as DDP's average with another rank's does
    with pytest.raises(
        RunError, match="the gradients that rank 2 is about to apply are not finite in step 12"
    ):
        trained.optimizer.step()
    assert waits == [checks._WAIT_S]


def test_a_step_that_a_scaler_skips_is_no_fault(trained):
    trained.backward(trained.loss() * NAN)  # its optimizer is not called
    trained.backward(trained.loss())
    trained.optimizer.step()
    trained.backward(trained.loss() * NAN)
    trained.optimizer.found_inf = torch.ones(1)  # what it hands to a fused one
    trained.check.look(trained.optimizer)


def test_gradients_that_were_taken_away_are_no_fault(trained):
    trained.backward(trained.loss() * NAN)
    trained.optimizer.zero_grad()
    trained.optimizer.step()


@pytest.mark.parametrize("by_name", [True, False])
def test_gradients_that_a_closure_makes_are_looked_at_after_it(trained, by_name):
    """Lightning makes a step so."""
    factors = [1.0, NAN]

    def closure():
        loss = trained.loss() * factors.pop(0)
        trained.backward(loss)
        return loss

    def step():
        return (
            trained.optimizer.step(closure=closure) if by_name else trained.optimizer.step(closure)
        )

    assert step().isfinite()
    with pytest.raises(RunError, match="rank 2's loss is not finite"):
        step()


def test_a_rank_is_not_blamed_for_what_it_had_in_the_step_before(trained, monkeypatch):
    monkeypatch.setattr(checks, "time", SimpleNamespace(sleep=lambda _: None))
    trained.backward(trained.loss() * NAN)
    trained.optimizer.zero_grad()
    trained.optimizer.step()
    trained.backward(trained.loss())
    trained.net[2].weight.grad.fill_(NAN)  # another rank's, this time
    with pytest.raises(
        RunError, match="the gradients that rank 2 is about to apply are not finite"
    ):
        trained.optimizer.step()


def test_sparse_gradients_are_looked_at(slot):
    table = nn.Embedding(5, 2, sparse=True)
    optimizer, check = torch.optim.SGD(table.parameters(), lr=0.1), FiniteCheck(slot, 0)
    check.follow(table.parameters())
    optimizer.register_step_pre_hook(check.before_step)
    table(torch.tensor([1])).sum().backward()
    optimizer.step()
    (table(torch.tensor([1])).sum() * NAN).backward()
    with pytest.raises(RunError, match="gradient of weight"):
        optimizer.step()


def test_a_model_that_is_followed_can_be_saved_and_copied(trained, recwarn):
    trained.backward(trained.loss())
    pickle.loads(pickle.dumps(trained.net))
    copy.deepcopy(trained.net)
    assert list(recwarn) == []


def test_parameters_that_take_no_gradient_are_left_alone(slot):
    check = FiniteCheck(slot, 0)
    frozen = nn.Parameter(torch.ones(1), requires_grad=False)
    check.follow([frozen])
    check.follow([frozen])


def test_the_fault_is_told_with_a_checkpoint_in_mind():
    assert "a checkpoint from before it is finite" in non_finite(1, 2, "loss").evidence[1]


class Wrapper(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module


def test_names_are_those_in_the_model_without_wrappers():
    net = nn.Sequential(nn.Linear(2, 2))
    wrapped = Wrapper(Wrapper(net))
    alone = nn.Parameter(torch.ones(1))
    assert names_of([net[0].weight, net[0].bias, alone]) == ["0.weight", "0.bias", "parameter 2"]
    assert len(list(wrapped.parameters())) == 2
    assert list(in_shards()) == []


def test_checksums_tell_the_last_bit():
    tensors = [
        torch.randn(3, 5),
        torch.randn(4).half(),
        torch.randn(2, dtype=torch.complex64),
        torch.ones(3).double(),
    ]
    tensors += [torch.empty(0), torch.arange(6).reshape(2, 3).t(), torch.tensor(1.0)]
    before = checksums(tensors)
    assert before == checksums([each.clone() for each in tensors])
    tensors[0][1, 2] = torch.nextafter(tensors[0][1, 2], torch.tensor(9.0))
    after = checksums(tensors)
    assert [old == new for old, new in zip(before, after, strict=True)] == [False] + [True] * 6
    assert checksums([]) == []


def test_one_checksum_of_all_fits_in_64_bits_and_minds_the_order():
    assert combined([1, 2]) != combined([2, 1])
    assert combined([]) == 1
    for sums in ([2**62] * 9, [-(2**62)] * 9, [0], [-1]):
        assert -(2**63) <= combined(sums) < 2**63
