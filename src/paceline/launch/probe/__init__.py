"""Measurements inside a rank: steps, losses, loops and parameters, and answers to the launcher.

awaited_worker   show the launcher which DataLoader worker a rank waits for, by two of the
                 rank's counters
checks           install the check inside a rank that ``--check-finite`` requests
ddp_settings     give DistributedDataParallel settings that a script does not set, to measure
                 what they are worth
evaluation_draws  notice that reading samples of an evaluation draws random numbers, as with the
                 transforms of training
gradients        sample local gradients in a few early steps, to find ranks that compute the
                 same values
last_look        check the trained parameters of a rank for NaN when training seems to be over
loader_commands  what ``paceline tune`` and a rank's DataLoader say to each other, through
                 files of one folder
loader_maker     find the line of a script in which a DataLoader's settings are written
loader_trials    try other settings of a rank's training DataLoader while its script trains:
                 ``paceline tune``
loops            follow loops over DataLoaders inside a rank: their first indices, and their
                 numbers of batches
loss_proof       prove in a rank that a script's loss is a mean over rows: ``paceline run
                 --prove``
one_rank_mesh    let a script whose mesh of ranks is written into it run on one rank, as the
                 reference
orders           fingerprints by which two orders of samples, or two batches, are compared
padding          detect evaluations over a sampler that pads: 101 samples on 2 ranks are
                 silently scored as 102
probe            the probe: count steps and time data loading inside a rank, without changes to
                 the script
proof_batch      cut a batch into two uneven parts, for the proof of a loss: its rows, whatever
                 holds them
proof_hooks      where the proof of a loss takes part in a script: in its loops, backwards and
                 steps
proof_judging    decide whether a loss is a mean over rows, from gradients of a batch and of
                 its parts
proof_state      what a pass over a batch begins with: parameters, buffers, gradients and
                 random generators
random_rows      give the rows of a part of a batch the random numbers that they had in the
                 whole batch
record_file      write what ``paceline verify`` compares: a JSON object a line, one file for
                 each rank
record_loops     record loops over DataLoaders: which samples each rank reads, and whether it
                 trains on them
record_masks     take dropout out of a run whose values are compared, and record its masks
record_steps     record optimizer steps: learning rates, losses, and checksums of gradients and
                 parameters
record_values    record sums of a rank's values in its first steps: inputs, outputs,
                 gradients, updates
recorder         record in a rank what ``paceline verify`` compares: samples, steps, and
                 printed figures
replicas         fingerprint what ranks hold alike, after steps 1, 2, 4, 8, ...; the launcher
                 compares ranks
splits           note which samples a rank trains on, and which it holds out, at some places of
                 the dataset
script_copies    find copies of parameters that a script keeps beside its optimizer, such as
                 averaged weights
stack_responder  the stack responder: report a rank's position to its launcher, even if the
                 rank hangs
stage_clock      time the stages of some optimizer steps: optimizer, other, data, forward,
                 backward, exchange
trial_end        end the ranks of a trial: a run of a few optimizer steps, all of which are
                 timed
value_sums       sum the values of tensors, so that sums over ranks can be compared with
                 those of one process
"""
