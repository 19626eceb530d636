"""Values of several ranks beside those of one process, from sums that are made up of tensors."""

import random
from dataclasses import replace

import pytest

from paceline.measure.verify import values
from paceline.measure.verify.recorded_values import Period, RecordedCall, compare
from verify_records import rank, training, world

PRECISION = 1.2e-7
OF_FORWARD = ("embed", "block.norm", "block.mlp", "block", "head")


def sums(numbers):
    return tuple(
        float(sum(part))
        for part in zip(*((1, x, abs(x), x * x, x**3) for x in numbers), strict=True)
    )


def drawn(name, size=24):
    dice = random.Random(name)
    return [dice.gauss(0, 1) for _ in range(size)]


def halves(name):
    numbers = drawn(name)
    return numbers[:12], numbers[12:]


def call(name, numbers):
    parent = name.rpartition(".")[0] or ("" if name == "Net" else "Net")
    return RecordedCall(
        name, parent, "Linear", True, f"train.py:{len(name)}", (), sums(numbers), PRECISION
    )


PARAMETERS = ("block.norm.weight", "block.mlp.weight", "head.weight")


def period(part=None, number=1, **changes):
    """A right period of one process, or of a rank with half of the rows and of ``block.mlp``."""

    def of(name):
        return drawn(name) if part is None else halves(name)[part]

    names = ("Net", "embed", "block", "block.norm", "block.mlp", "head")
    made = Period(
        inputs={"Net": sums(of("inputs"))},
        calls=tuple(call(name, of(f"{number} {name}")) for name in names),
        loss=sums([2.0 if part is None else 1.5 + part]),
        precision=PRECISION,
        place="train.py:30",
    )
    for kind in ("parameters", "gradients", "updates"):
        table = getattr(made, kind)
        for name in PARAMETERS:
            whole = f"{number} {kind} {name}"
            table[name] = sums(of(whole) if "mlp" in name else drawn(whole))
    return replace(made, **changes)


def ranks(*periods, number=1, size=2):
    held = training()
    return replace(
        world(*(rank([], held) for _ in range(size))), values=tuple({number: p} for p in periods)
    )


ONE = ranks(period(), size=1)


def changed(made, kind, name, numbers):
    return replace(made, **{kind: {**getattr(made, kind), name: sums(numbers)}})


def test_divided_and_copied_tensors_are_recognised_by_their_size():
    whole = drawn("x")
    copied = compare("x", [sums(whole)] * 3, sums(whole))
    divided = compare("x", [sums(whole[:10]), sums(whole[10:])], sums(whole))
    both = compare("x", [sums(whole[:10]), sums(whole[10:])] * 2, sums(whole))
    assert [each.copies for each in (copied, divided, both)] == [3, 1, 2]
    assert max(each.error for each in (copied, divided, both)) < 1e-12
    assert compare("x", [sums(whole[:10])] * 2, sums(whole)) is None


def test_a_sign_and_a_mean_of_different_values_are_seen():
    whole = drawn("x")
    turned = compare("x", [sums([-x for x in whole])] * 2, sums(whole))
    one, other = [x + 1 for x in whole], [x - 1 for x in whole]
    mean = compare("x", [sums(one), sums(other)], sums(whole))
    assert turned.error > 0.01
    assert mean.error > 0.01
    assert mean.is_mean


def test_right_ranks_are_not_accused():
    several = ranks(period(0), period(1))
    assert values.judge_updates(several, ONE).state == "kept"
    assert values.judge_loss(several, ONE).state == "kept"


def test_rounding_is_not_a_difference():
    noisy = changed(
        period(0),
        "gradients",
        "head.weight",
        [x * (1 + 1e-6) for x in drawn("1 gradients head.weight")],
    )
    assert values.judge_updates(ranks(noisy, period(1)), ONE).state == "kept"


def finding(*periods, one=ONE):
    verdict = values.judge_updates(ranks(*periods), one)
    assert verdict.state == "broken", verdict
    return verdict.finding


def test_a_gradient_that_is_not_reduced_is_named():
    name = "block.norm.weight"
    parts = [[x * share for x in drawn(f"1 gradients {name}")] for share in (0.3, 0.7)]
    found = finding(*(changed(period(n), "gradients", name, part) for n, part in enumerate(parts)))
    assert found.name == "updates-differ"
    assert found.evidence[0] == f"first: {name}"


def test_of_wrong_gradients_that_of_the_last_module_is_named():
    made = [period(0), period(1)]
    for name in PARAMETERS[:2]:
        made = [
            changed(one, "gradients", name, drawn(f"wrong {name}", 24 if "norm" in name else 12))
            for one in made
        ]
    assert finding(*made).evidence[0] == "first: block.mlp.weight"


def test_a_factor_of_all_gradients_is_named():
    made = [period(0), period(1)]
    for name in PARAMETERS:
        of_ranks = [drawn(f"1 gradients {name}")] * 2
        if "mlp" in name:
            of_ranks = halves(f"1 gradients {name}")
        made = [
            changed(one, "gradients", name, [2 * x for x in part])
            for one, part in zip(made, of_ranks, strict=True)
        ]
    found = finding(*made)
    assert "2 times those on 1 rank" in found.what
    assert any("factor 2" in line for line in found.evidence)


def with_outputs(made, wrong):
    calls = [
        call(c.name, drawn(f"wrong {c.name}", 12)) if c.name in wrong else c for c in made.calls
    ]
    return changed(replace(made, calls=tuple(calls)), "gradients", "head.weight", drawn("wrong"))


@pytest.mark.parametrize(
    ("wrong", "first"),
    [
        ({"Net", "block", "block.mlp", "head"}, "block.mlp"),
        ({"Net", "block.norm", "head"}, "head"),  # the block has added up what its norm returns
        ({"Net", "block", "head"}, "block"),
    ],
)
def test_the_module_from_which_on_outputs_differ_is_named(wrong, first):
    found = finding(*(with_outputs(period(n), wrong) for n in (0, 1)))
    assert found.name == "output-differs"
    assert found.evidence[0] == f"first: {first}"


def test_a_module_that_returns_a_part_is_not_accused():
    made = [period(0), period(1)]
    calls = [
        tuple(
            call(c.name, drawn(f"part {n}", 12)) if c.name == "block.mlp" else c for c in one.calls
        )
        for n, one in enumerate(made)
    ]
    made = [replace(one, calls=own) for one, own in zip(made, calls, strict=True)]
    assert values.judge_updates(ranks(*made), ONE).state == "kept"


def test_an_update_that_is_another_one_is_named():
    made = [
        changed(period(n), "updates", "block.mlp.weight", drawn(f"muon {n}", 12)) for n in (0, 1)
    ]
    found = finding(*made)
    assert "optimizer changes block.mlp.weight" in found.what


def test_another_loss_is_named():
    made = [replace(period(n), loss=sums([1.2])) for n in (0, 1)]
    for name in PARAMETERS:
        made = [
            changed(one, "gradients", name, drawn(f"loss {name}", 12 if "mlp" in name else 24))
            for one in made
        ]
    assert finding(*made).name == "loss-differs"
    assert values.judge_loss(ranks(*made), ONE).finding.name == "loss-differs"


def test_other_values_at_the_start_of_the_same_parameter():
    made = changed(period(1), "parameters", "head.weight", drawn("other seed"))
    assert finding(period(0), made).name == "initialisation-differs"


def test_equal_values_in_different_parts_of_a_parameter():
    part = halves("1 parameters block.mlp.weight")[0]
    made = changed(period(1), "parameters", "block.mlp.weight", part)
    assert "equal values in different parts" in finding(period(0), made).what


def test_ranks_that_read_the_same_rows():
    made = replace(period(1), inputs=period(0).inputs)
    assert "rows that 1 rank reads are left out" in finding(period(0), made).evidence[1]


def test_an_average_that_is_another_one_is_named():
    several = ranks(
        *(replace(period(n, 2), copies={"ema: head.weight": sums(drawn("a"))}) for n in (0, 1)),
        number=2,
    )
    one = ranks(
        replace(period(None, 2), copies={"ema: head.weight": sums(drawn("b"))}), number=2, size=1
    )
    verdict = values.judge_updates(several, one)
    assert "the copy of head.weight in ema" in verdict.finding.what


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (
            [changed(period(n), "parameters", "head.weight", drawn("seed")) for n in (0, 1)],
            "set a seed",
        ),
        (
            [replace(period(n), inputs={"Net": sums(drawn(f"noise {n}", 12))}) for n in (0, 1)],
            "other samples",
        ),
        (
            [
                replace(period(n), inputs={"Net": sums(drawn(f"more {n}"))}, calls=())
                for n in (0, 1)
            ],
            "--batch-option",
        ),
        ([replace(period(n), is_random=True) for n in (0, 1)], "random numbers"),
        ([replace(period(n), inputs={"Other": sums(drawn("x"))}) for n in (0, 1)], "another order"),
    ],
)
def test_why_nothing_is_compared(made, words):
    verdict = values.judge_updates(ranks(*made), ONE)
    assert verdict.state == "not judged"
    assert words in verdict.reason


def test_statistics_of_a_batch_are_not_judged():
    made = [
        with_outputs(period(n), {"Net", "block", "block.norm", "block.mlp", "head"}) for n in (0, 1)
    ]
    one = period()
    calls = tuple(
        replace(c, type="BatchNorm1d") if c.name == "block.norm" else c for c in one.calls
    )
    verdict = values.judge_updates(ranks(*made), ranks(replace(one, calls=calls), size=1))
    assert "BatchNorm" in verdict.reason


def test_ranks_that_apply_gradients_of_their_own_are_left_to_another_property():
    made = [period(0), period(1)]
    names = [name for name in PARAMETERS if "mlp" not in name]
    for sign, number in ((1, 0), (-1, 1)):
        for name in names:
            mean = drawn(f"1 gradients {name}")
            made[number] = changed(made[number], "gradients", name, [x + sign for x in mean])
    made = [replace(p, gradients={name: p.gradients[name] for name in names}) for p in made]
    assert "train apart" in values.judge_updates(ranks(*made), ONE).reason


def test_values_that_one_rank_does_not_repeat_accuse_nobody():
    one = replace(ONE, is_repeatable=False)
    assert "runs again" in values.judge_updates(ranks(period(0), period(1)), one).reason
