"""Which settings are tried, and what each of them is said to be worth."""

import json

import pytest

from paceline import env
from paceline.errors import Finding, UsageError
from paceline.measure.bench import settings
from paceline.measure.bench.settings import TriedSetting
from paceline.measure.bench_file import WorldBench
from paceline.measure.trial import TrialResult

MS = 1_000_000
OFFERS = settings.offered(backend="gloo", cpus=4, ranks=2)
HOOK = next(offer for offer in OFFERS if offer.name == "bf16-hook")


def result(step_ms, *, loss=1.0, applied=(), finding=None):
    steps = {
        step: dict.fromkeys((0, 1), (MS, 0, 0, MS, MS, (step_ms - 3) * MS)) for step in range(2, 40)
    }
    return TrialResult(
        steps=steps,
        hosts={0: "node-a", 1: "node-a"},
        losses=dict.fromkeys(steps, loss),
        applied=applied,
        finding=finding,
    )


def test_every_setting_has_a_name_and_a_line_of_its_own():
    names = [offer.name for offer in OFFERS]
    assert len(set(names)) == len(names) == len({offer.line for offer in OFFERS})
    assert "OMP_NUM_THREADS=2" in names
    assert not any(name.startswith("NCCL") for name in names)
    on_gpus = settings.offered(backend="nccl", cpus=4, ranks=2)
    assert "NCCL_ALGO=Tree" in [offer.name for offer in on_gpus]


def test_settings_are_chosen_by_name_or_as_variables():
    chosen = settings.choose("static-graph, NCCL_PROTO=LL", OFFERS)
    assert [setting.name for setting in chosen] == ["static-graph", "NCCL_PROTO=LL"]
    assert chosen[1].environ == {"NCCL_PROTO": "LL"}
    assert json.loads(chosen[0].environ[env.TRY_DDP]) == {"static_graph": True}
    assert settings.choose("all", OFFERS) == OFFERS


def test_an_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(UsageError, match="fix: --settings static-graph"):
        settings.choose("static-grpah", OFFERS)


def test_a_gain_is_of_samples_per_second():
    worth = settings.judge(
        HOOK, [result(10, loss=1.5, applied=("hook",))] * 2, [result(20)] * 2, first=10
    )
    assert worth.gain.value == pytest.approx(2.0)
    assert (worth.loss, worth.loss_without) == (pytest.approx(1.5), pytest.approx(1.0))
    assert worth.changes_arithmetic


@pytest.mark.parametrize(
    ("trials", "reason"),
    [
        ([result(10)], "does not construct DistributedDataParallel"),
        (
            [result(10, finding=Finding("trial-failed", "no", evidence=("bf16 is unknown",)))],
            "the script fails with it: bf16 is unknown",
        ),
    ],
)
def test_what_did_not_take_effect_is_not_judged(trials, reason):
    worth = settings.judge(HOOK, trials, [result(20)], first=10)
    assert worth.gain is None
    assert reason in worth.reason


def test_variables_need_no_parallel_model():
    setting = settings.variable("OMP_NUM_THREADS=2")
    worth = settings.judge(setting, [result(20)], [result(20)], first=10)
    assert worth.gain.value == pytest.approx(1.0)


def test_accumulation_saves_three_exchanges_of_four():
    steps = result(20).steps
    worth = settings.accumulation(WorldBench(1, 64, {0: "a", 1: "a"}, [steps]))
    assert worth.gain.value == pytest.approx(20 / (20 - 0.75 * 17))
    assert worth.is_calculated


def test_one_rank_has_nothing_to_accumulate():
    assert settings.accumulation(WorldBench(1, 64, {0: "a"}, [result(20).steps])) is None


def test_a_setting_is_data_for_the_launcher():
    assert TriedSetting("x", "x", {"hook": "bfloat16"}).environ == {
        env.TRY_DDP: '{"hook": "bfloat16"}'
    }
