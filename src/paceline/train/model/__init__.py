"""Prepare a model: its parallelism, precision and activation checkpointing.

strategy      ddp or fsdp, and their options
fsdp_options  mesh, policies and ignored parameters of fsdp
mesh          the ranks over which the data is shared out: all, or those of dimensions of a mesh
sharded       models that the user has made parallel: what is equal on which ranks, who averages
wrapping      optimizers that were made before a model was sharded
whole_matrix  optimizers whose step on shards is another than on whole matrices
deferred      values for a model that was built on the meta device
parallel      the model that ``Session.setup`` returns on several ranks
precision     the precision, and the loss scale of float16
blocks        the layers of a model, which are sharded or recomputed one at a time
keys          which key of a module a foreign key stands for
"""
