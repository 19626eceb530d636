"""Ways to train that tutorials show: several models, averaged weights, closures, frozen layers, odd schedules."""

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import TensorDataset

import paceline
from ranks import parity
from ranks.parity import WIDTH, mse, net, rows

pytestmark = pytest.mark.ci


def regress(session, model, optimizer, **options):
    """Train a model that ``setup`` returned on the rows."""
    loader = session.loader(TensorDataset(*rows()), parity.BATCH, shuffle=True)
    return parity.train(
        session, model, optimizer, loader, mse, watch=lambda model: mse(model, rows()), **options
    )


def clipped_by_norm(folder):
    session = parity.session_of(folder)
    model, optimizer = session.setup(
        model := net(), torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    )
    return regress(
        session, model, optimizer, before_step=lambda: session.clip_grad_norm(model, 0.1)
    )


def clipped_by_torch(folder):
    session = parity.session_of(folder)
    model, optimizer = session.setup(
        model := net(), torch.optim.RMSprop(model.parameters(), lr=0.01)
    )
    clip = nn.utils.clip_grad_norm_
    return regress(session, model, optimizer, before_step=lambda: clip(model.parameters(), 0.1))


def one_cycle(folder):
    session = parity.session_of(folder)
    model, optimizer = session.setup(model := net(), torch.optim.AdamW(model.parameters(), lr=0.01))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=18)
    return regress(session, model, optimizer, after_step=schedule.step)


def accumulated_with_ragged_end(folder):
    session = parity.session_of(folder, accumulate=4)
    model, optimizer = session.setup(model := net(), torch.optim.AdamW(model.parameters(), lr=0.02))
    return regress(session, model, optimizer)


def frozen_parameters(folder):
    session = parity.session_of(folder)
    model = net()
    model[0].requires_grad_(False)
    model, optimizer = session.setup(model, torch.optim.AdamW(model[2].parameters(), lr=0.02))
    return regress(session, model, optimizer)


class Tied(nn.Module):
    """An autoencoder whose decoder is its encoder, transposed."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.decoder.weight = self.encoder.weight

    def forward(self, x):
        return self.decoder(torch.tanh(self.encoder(x))).mean(1, keepdim=True)


def tied_weights(folder):
    session = parity.session_of(folder)
    model, optimizer = session.setup(
        model := Tied(), torch.optim.AdamW(model.parameters(), lr=0.02)
    )
    return regress(session, model, optimizer)


def normalized_weights(folder):
    session = parity.session_of(folder)
    model = net()
    nn.utils.parametrizations.weight_norm(model[0])
    nn.utils.parametrizations.spectral_norm(model[2])
    model, optimizer = session.setup(model, torch.optim.AdamW(model.parameters(), lr=0.02))
    return regress(session, model, optimizer)


def convolutions(*, frozen_statistics):
    model = nn.Sequential(
        nn.Unflatten(1, (1, 2, 2)),
        nn.Conv2d(1, 3, 2),
        nn.BatchNorm2d(3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(3, 1),
    )
    if frozen_statistics:
        model[2].eval()
    return model


class Fixed(nn.Module):
    """A net whose batch norm keeps the statistics that it was trained with, as detectors fine-tune a backbone."""

    def __init__(self):
        super().__init__()
        self.net = convolutions(frozen_statistics=True)

    def train(self, mode=True):
        super().train(mode)
        self.net[2].eval()
        return self

    def forward(self, x):
        return self.net(x)


def convolutions_with_frozen_statistics(folder):
    session = parity.session_of(folder)
    model, optimizer = session.setup(
        model := Fixed().train(), torch.optim.AdamW(model.parameters(), lr=0.02)
    )
    return regress(session, model, optimizer)


def group_norm(folder):
    session = parity.session_of(folder)
    model = nn.Sequential(
        nn.Linear(WIDTH, 6), nn.GroupNorm(2, 6), nn.GELU(), nn.LayerNorm(6), nn.Linear(6, 1)
    )
    model, optimizer = session.setup(model, torch.optim.AdamW(model.parameters(), lr=0.02))
    return regress(session, model, optimizer)


def moving_average(folder):
    session = parity.session_of(folder)
    model, optimizer = session.setup(model := net(), torch.optim.AdamW(model.parameters(), lr=0.02))
    average = AveragedModel(session.unwrap(model), multi_avg_fn=get_ema_multi_avg_fn(0.9))
    losses, weights = regress(
        session,
        model,
        optimizer,
        after_step=lambda: average.update_parameters(session.unwrap(model)),
    )
    return losses, {
        **weights,
        **{f"average.{name}": each for name, each in parity.weights_of(average).items()},
    }


def stochastic_weight_averaging(folder):
    session = parity.session_of(folder)
    model, optimizer = session.setup(model := net(), torch.optim.SGD(model.parameters(), lr=0.05))
    average, schedule = (
        AveragedModel(session.unwrap(model)),
        SWALR(optimizer, swa_lr=0.02, anneal_epochs=2),
    )
    loader = session.loader(TensorDataset(*rows()), parity.BATCH, shuffle=True)
    losses = []
    for _ in session.epochs(4):
        for batch in loader:
            session.backward(mse(model, batch))
            optimizer.step()
            optimizer.zero_grad()
        average.update_parameters(session.unwrap(model))
        schedule.step()
        losses.append(parity.watched(lambda model: mse(model, rows()), average.module))
    return losses, parity.weights_of(session.unwrap(model), average.module)


def several_optimizers(folder):
    session = parity.session_of(folder)
    model = net()
    first, second = (
        torch.optim.AdamW(model[0].parameters(), lr=0.02),
        torch.optim.SGD(model[2].parameters(), lr=0.1),
    )
    model, first, second = session.setup(model, first, second)

    def step_second():
        second.step()
        second.zero_grad()

    return regress(session, model, first, after_step=step_second)


def two_models_and_one_optimizer(folder):
    session = parity.session_of(folder)
    encoder, head = nn.Linear(WIDTH, 6), nn.Linear(6, 1)
    optimizer = torch.optim.AdamW([*encoder.parameters(), *head.parameters()], lr=0.02)
    encode = session.setup(encoder)
    predict, optimizer = session.setup(head, optimizer)
    loader = session.loader(TensorDataset(*rows()), parity.BATCH, shuffle=True)
    losses = []
    for _ in session.epochs(2):
        for x, y in loader:
            session.backward(nn.functional.mse_loss(predict(torch.tanh(encode(x))), y))
            optimizer.step()
            optimizer.zero_grad()
            losses.append(
                parity.watched(
                    lambda head: mse(nn.Sequential(encoder, nn.Tanh(), head), rows()), head
                )
            )
    return losses, parity.weights_of(encoder, head)


def lbfgs(folder):
    session = parity.session_of(folder)
    model = net()
    model, optimizer = session.setup(
        model,
        torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4, line_search_fn="strong_wolfe"),
    )
    loader, losses = session.loader(TensorDataset(*rows()), 15), []
    for _ in session.epochs(2):
        for x, y in loader:

            def closure(x=x, y=y):
                optimizer.zero_grad()
                prediction = model(x)
                session.backward(nn.functional.mse_loss(prediction, y))
                total = nn.functional.mse_loss(prediction, y, reduction="sum").item()
                total, count = session.reduce((total, y.numel()))
                return torch.tensor(total / count, dtype=torch.float64)

            optimizer.step(closure)
            losses.append(parity.watched(lambda model: mse(model, rows()), session.unwrap(model)))
    return losses, parity.weights_of(session.unwrap(model))


def sharpness_aware(folder):
    """SAM: a second forward and backward of the same batch, at weights a small step uphill."""
    session = parity.session_of(folder)
    model, optimizer = session.setup(model := net(), torch.optim.SGD(model.parameters(), lr=0.1))
    own, losses = session.unwrap(model), []
    loader = session.loader(TensorDataset(*rows()), parity.BATCH, shuffle=True)
    for _ in session.epochs(2):
        for batch in loader:
            session.backward(mse(model, batch))
            grads = [each.grad.clone() for each in own.parameters()]
            norm = torch.stack([each.norm() for each in grads]).norm()
            moves = [0.05 * each / norm for each in grads]
            with torch.no_grad():
                torch._foreach_add_(list(own.parameters()), moves)
            optimizer.zero_grad()
            session.backward(mse(model, batch))
            with torch.no_grad():
                torch._foreach_sub_(list(own.parameters()), moves)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(parity.watched(lambda model: mse(model, rows()), own))
    return losses, parity.weights_of(own)


class Experts(nn.Module):
    """Rows go to one of two experts; in some batches one of them gets none on some ranks."""

    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList([nn.Linear(WIDTH, 1), nn.Linear(WIDTH, 1)])

    def forward(self, x):
        choice = (x[:, :1] > 0.8).long()
        parts = [expert(x[choice[:, 0] == number]) for number, expert in enumerate(self.experts)]
        found = x.new_zeros(len(x), 1)
        for number, part in enumerate(parts):
            found = found.index_put(((choice[:, 0] == number).nonzero()[:, 0],), part)
        return found


def experts_without_rows(folder):
    session = parity.session_of(folder)
    model, optimizer = session.setup(
        model := Experts(), torch.optim.AdamW(model.parameters(), lr=0.02)
    )
    return regress(session, model, optimizer)


class Routes(nn.Module):
    def __init__(self, parts):
        super().__init__()
        self.parts = parts

    def forward(self, x, with_second):
        return self.parts["first"](x) + (self.parts["second"](x) if with_second else 0)


def layer_drop(folder):
    """A layer that takes part in every second batch only."""
    session = parity.session_of(folder, strategy=paceline.DDP(find_unused_parameters=True))
    model = nn.ModuleDict({"first": nn.Linear(WIDTH, 1), "second": nn.Linear(WIDTH, 1)})
    model, optimizer = session.setup(Routes(model), torch.optim.AdamW(model.parameters(), lr=0.02))
    loader = session.loader(TensorDataset(*rows()), parity.BATCH, shuffle=True)
    number = iter(range(100))

    def loss_of(model, batch):
        x, y = batch
        return nn.functional.mse_loss(model(x, next(number) % 2), y)

    return parity.train(
        session,
        model,
        optimizer,
        loader,
        loss_of,
        watch=lambda model: mse(lambda x: model(x, 1), rows()),
    )


def average_of(folder, wrapped, save):
    """Train, average, and save; or restore what was saved, and return the weights of the average."""
    session = parity.session_of(folder)
    model, optimizer = session.setup(model := net(), torch.optim.SGD(model.parameters(), lr=0.05))
    average = AveragedModel(model if wrapped else session.unwrap(model), use_buffers=True)
    session.register(average=average)
    if not save:
        assert session.restore("latest")
    else:
        regress(session, model, optimizer, after_step=lambda: average.update_parameters(model))
        session.save(wait=True)
    return [each.tolist() for each in average.parameters()], int(average.n_averaged)


SETUPS = [
    clipped_by_norm,
    clipped_by_torch,
    one_cycle,
    accumulated_with_ragged_end,
    frozen_parameters,
    tied_weights,
    normalized_weights,
    convolutions_with_frozen_statistics,
    group_norm,
    moving_average,
    stochastic_weight_averaging,
    several_optimizers,
    two_models_and_one_optimizer,
    lbfgs,
    sharpness_aware,
    experts_without_rows,
    layer_drop,
]


@pytest.mark.parametrize(("setup", "world_size"), parity.cases(SETUPS))
def test_any_number_of_ranks_trains_what_one_would(
    library_ranks, alone, tmp_path, setup, world_size
):
    parity.check(parity.run(library_ranks, setup, tmp_path / "run", world_size), alone(setup))


@pytest.mark.parametrize("wrapped", [True, False])
@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 1), (1, 2)])
def test_averaged_weights_go_on_with_any_number_of_ranks(
    library_ranks, tmp_path, before, after, wrapped
):
    """Also where the average is one of what setup returned, which is another class on one rank."""
    saved = library_ranks.run(average_of, str(tmp_path), wrapped, True, world_size=before)[0]
    for restored in library_ranks.run(
        average_of, str(tmp_path), not wrapped, False, world_size=after
    ):
        assert restored == saved
