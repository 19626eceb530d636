"""The rules over several lines of a text, in their order, with what each of them changes."""

from __future__ import annotations

from paceline.diagnose.explain.inference import RULES

ORDER = """
name_ranks_behind: Add to a timeout which ranks are behind, if several ranks logged their progress.
wrong_number_of_tasks: Infer a wrong number of tasks if ranks joined twice or are missing.
local_rank_without_device: Infer that a task sees fewer devices than its local rank needs.
double_launch: Infer that all ranks were started twice, or that a file of an earlier run makes it look so.
falling_loss_scale: Infer NaN or Inf under fp16 from a loss scale that falls step by step.
non_finite_gradient: Infer a fault of some ranks from a table of values by rank with NaN or Inf for a minority.
stopped_on_nan: Infer a fault of some ranks that stopped on NaN while the others wait for them.
loss_not_finite: Infer that training continued in vain if the last losses in the text are NaN or Inf.
different_collectives: Infer a mismatch if ranks timed out in different operations with the same number.
slow_rank: Infer a slow rank if one rank prepared data or saved before the timeout.
uneven_inputs: Infer uneven inputs if ranks logged different numbers of batches and a collective failed.
rank_dependent_graph: Infer a rank-dependent graph if ranks lack gradients of disjoint sets of parameters.
batch_without_samples: Infer a batch that is too small if a replica other than the first lacks an argument.
name_holder: Name the other process that holds much of the GPU that ran out of memory.
weigh_missing_endpoint: Drop torchrun's warning about an ignored master address if an endpoint was set.
advise_one_start: Replace the fix of a rendezvous timeout if more workers joined than there are ranks.
blame_init_file: Attribute failed connections to a leftover init file.
drop_prefix_mismatch: Drop a mismatch of prefixes if keys on both sides start with ``module.``.
place_first_failure: Take the rank and the host of the first failure from the last block of torchrun's table.
lower_kills_of_launcher: Lower SIGKILLs of torchrun, which ends so what has not ended 30 s after the first failure.
heed_context: Replace or drop candidates as ``context.toml`` says of other lines, or of their absence.
blame_launcher: Attribute SIGTERM of some ranks to the launcher if another rank failed first.
name_single_rank: Rename an exception of one rank if the other ranks only lost their peer.
lower_survived: Lower faults after which training continued; drop them if nothing ended the run.
drop_ended_after_success: Drop faults that an external stop caused after training had finished.
lower_consequences: Lower the consequences of other candidates to the tier of a consequence.
lower_after_stop: Lower what follows an external stop of the job, and raise what precedes it.
drop_overcome: Drop warnings after which training continued.
drop_recovered: Drop all candidates if the ranks restarted and trained until the end of the text.
interrupted_rendezvous: Infer a rendezvous timeout if Ctrl-C interrupted the wait for other ranks.
hang_at_start: Infer a hang at the start if the text ends before ranks have connected to each other.
"""


def test_the_rules_apply_in_this_order_and_each_says_what_it_changes():
    lines = [f"{rule.__name__}: {(rule.__doc__ or '').splitlines()[0]}" for rule in RULES]
    assert lines == ORDER.strip().splitlines()
