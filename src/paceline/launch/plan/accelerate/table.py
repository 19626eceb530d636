"""The options of ``accelerate launch`` that reach ranks, with defaults and variables. Data only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Defaults if neither the command line nor the configuration sets an option. Options not listed here
# default to None, and only such options are read from the top level of a configuration.
DEFAULTS: Mapping[str, Any] = {
    "cpu": False,
    "multi_gpu": False,
    "tpu": False,
    "tpu_use_cluster": False,
    "use_deepspeed": False,
    "use_fsdp": False,
    "use_megatron_lm": False,
    "use_parallelism_config": False,
    "debug": False,
    "same_network": False,
    "enable_cpu_affinity": False,
    "dynamo_mode": "default",
    "dynamo_use_fullgraph": False,
    "dynamo_use_dynamic": False,
    "dynamo_use_regional_compilation": False,
    "rdzv_backend": "static",
    "fsdp_version": "1",
    "fsdp_offload_params": "false",
    "fsdp_min_num_params": 100_000_000,
    "fsdp_sharding_strategy": "FULL_SHARD",
    "fsdp_reshard_after_forward": "true",
    "fsdp_forward_prefetch": "false",
    "fsdp_use_orig_params": "true",
    "fsdp_cpu_ram_efficient_loading": "true",
    "fsdp_sync_module_states": "true",
    "fsdp_activation_checkpointing": "false",
    "fsdp_activation_checkpointing_offload": "false",
    "megatron_lm_tp_degree": 1,
    "megatron_lm_pp_degree": 1,
    "megatron_lm_use_custom_fsdp": False,
    "megatron_lm_no_load_optim": False,
    "megatron_lm_no_save_optim": False,
    "megatron_lm_eod_mask_loss": False,
    "megatron_lm_optimizer_cpu_offload": False,
    "megatron_lm_use_precision_aware_optimizer": False,
    "megatron_lm_overlap_cpu_optimizer_d2h_h2d": False,
    "megatron_lm_gradient_clipping": 1.0,
    "fp8_use_autocast_during_eval": False,
    "fp8_margin": 0,
    "fp8_interval": 1,
    "fp8_format": "HYBRID",
    "fp8_amax_history_len": 1024,
    "fp8_amax_compute_algo": "most_recent",
    "fp8_override_linear_precision": (False, False, False),
    "fp8_opt_level": "O2",
    "fp8_enable_fsdp_float8_all_gather": 1,
    "fp8_pad_inner_dim": 1,
    "parallelism_config_dp_replicate_size": 1,
    "parallelism_config_dp_shard_size": 1,
    "parallelism_config_tp_size": 1,
    "parallelism_config_cp_size": 1,
    "parallelism_config_cp_backend": "torch",
    "parallelism_config_cp_comm_strategy": "allgather",
    "parallelism_config_sp_size": 1,
    "parallelism_config_sp_backend": "deepspeed",
    "parallelism_config_sp_seq_length_is_variable": True,
    "parallelism_config_sp_attn_implementation": "sdpa",
}

# Conversions of typed text to the value that accelerate writes; all other text is written as typed.
FLOATS = frozenset(
    {"gradient_clipping", "megatron_lm_gradient_clipping", "megatron_lm_attention_dropout"}
    | {"megatron_lm_hidden_dropout"}
)
SWITCHES = frozenset(
    {"fp8_enable_fsdp_float8_all_gather", "fp8_pad_inner_dim"}
)  # yes or no, written as 1 or 0
TRUTHS = frozenset(  # any text means True
    {"parallelism_config_sp_seq_length_is_variable"}
    | {name for name in DEFAULTS if name.startswith("megatron_lm_")}
) - {"megatron_lm_tp_degree", "megatron_lm_pp_degree", "megatron_lm_gradient_clipping"}

# Defaults for the top level of a configuration.
TOP_LEVEL: Mapping[str, Any] = {
    "num_processes": None,
    "machine_rank": 0,
    "num_machines": 1,
    "gpu_ids": None,
    "main_process_ip": None,
    "main_process_port": None,
    "use_cpu": False,
}
# A group of a configuration -> the prefix that is added to its keys if they lack it.
GROUPS: Mapping[str, str] = {
    "fsdp_config": "fsdp",
    "fp8_config": "fp8",
    "dynamo_config": "dynamo_",
    "deepspeed_config": "",
    "megatron_lm_config": "",
    "parallelism_config": "",
    "mpirun_config": "",
}
# Keys that do not reach ranks: keys for TPUs, and those that only accelerate config reads.
PASSED_OVER = frozenset(
    {
        "compute_environment",
        "distributed_type",
        "mixed_precision",
        "fp16",
        "dynamo_backend",
        "debug",
        "same_network",
    }
    | {
        "main_training_function",
        "enable_cpu_affinity",
        "rdzv_backend",
        "downcast_bf16",
        "tpu_name",
        "tpu_zone",
    }
    | {"tpu_use_cluster", "tpu_use_sudo", "tpu_env", "tpu_vm", "command_file", "commands"}
)

MULTI_DEVICE = frozenset(
    f"MULTI_{device}" for device in ["GPU", "NPU", "MLU", "SDAA", "MUSA", "XPU", "HPU", "NEURON"]
)
ALONE = frozenset({"NO", "MULTI_CPU"})
TYPE_FLAGS: Mapping[str, str] = {
    "DEEPSPEED": "use_deepspeed",
    "FSDP": "use_fsdp",
    "MEGATRON_LM": "use_megatron_lm",
    "XLA": "tpu",
    "TPU": "tpu",
}
PRECISIONS = ("no", "fp16", "bf16", "fp8")

DYNAMO = (
    "dynamo_mode",
    "dynamo_use_fullgraph",
    "dynamo_use_dynamic",
    "dynamo_use_regional_compilation",
)

# Option -> variable, always set with FSDP; the second table only if the option has a value.
FSDP: Mapping[str, str] = {name: name.upper() for name in DEFAULTS if name.startswith("fsdp_")}
FSDP_OPTIONAL: Mapping[str, str] = {
    "fsdp_auto_wrap_policy": "FSDP_AUTO_WRAP_POLICY",
    "fsdp_transformer_layer_cls_to_wrap": "FSDP_TRANSFORMER_CLS_TO_WRAP",
    "fsdp_backward_prefetch": "FSDP_BACKWARD_PREFETCH",
    "fsdp_state_dict_type": "FSDP_STATE_DICT_TYPE",
    "fsdp_ignored_modules": "FSDP_IGNORED_MODULES",
}
FSDP_AS_WRITTEN = frozenset(  # all others are written in lower case
    {"fsdp_version", "fsdp_sharding_strategy", "fsdp_min_num_params", *FSDP_OPTIONAL}
)
DEEPSPEED: Mapping[str, str] = {
    "zero_stage": "ACCELERATE_DEEPSPEED_ZERO_STAGE",
    "gradient_accumulation_steps": "ACCELERATE_GRADIENT_ACCUMULATION_STEPS",
    "gradient_clipping": "ACCELERATE_GRADIENT_CLIPPING",
    "offload_optimizer_device": "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE",
    "offload_param_device": "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE",
    "zero3_init_flag": "ACCELERATE_DEEPSPEED_ZERO3_INIT",
    "zero3_save_16bit_model": "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL",
    "deepspeed_config_file": "ACCELERATE_DEEPSPEED_CONFIG_FILE",
    "deepspeed_moe_layer_cls_names": "ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES",
}
DEEPSPEED_AS_WRITTEN = frozenset({"deepspeed_config_file", "deepspeed_moe_layer_cls_names"})


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


MEGATRON = _names(
    "tp_degree use_custom_fsdp no_load_optim eod_mask_loss no_save_optim optimizer_cpu_offload"
    " use_precision_aware_optimizer overlap_cpu_optimizer_d2h_h2d decoder_last_pipeline_num_layers"
    " pp_degree gradient_clipping num_micro_batches sequence_parallelism recompute_activations"
    " use_distributed_optimizer recompute_granularity recompute_method recompute_num_layers"
    " attention_backend expert_model_parallel_size context_parallel_size attention_dropout"
    " hidden_dropout attention_softmax_in_fp32 expert_tensor_parallel_size calculate_per_token_loss"
    " use_rotary_position_embeddings"
)
PARALLELISM = [
    "dp_replicate_size",
    "dp_shard_size",
    "tp_size",
    "cp_size",
    "cp_backend",
    "sp_size",
    "sp_backend",
]
# Types of parallelism that must be in use before these options are set.
PARALLELISM_OF: Mapping[str, tuple[str, ...]] = {
    "cp_size": ("cp_comm_strategy",),
    "sp_size": ("sp_seq_length", "sp_seq_length_is_variable", "sp_attn_implementation"),
}

# Options with the same meaning in torchrun and paceline run.
SHARED = ("rdzv_backend", "rdzv_conf", "max_restarts", "monitor_interval", "role", "tee", "log_dir")
SHARED_FLAGS = ("module", "no_python")
# Options of accelerate launch without a counterpart, and the reasons.
WITHOUT_COUNTERPART: Mapping[str, str] = {
    "mpirun_hostfile": "mpirun is not used: start paceline run on each node",
    "deepspeed_hostfile": "no node is reached through ssh: start paceline run on each node",
    "deepspeed_inclusion_filter": "start paceline run on the nodes that are meant",
    "deepspeed_exclusion_filter": "start paceline run on the nodes that are meant",
    "deepspeed_multinode_launcher": (
        "no node is reached through ssh: start paceline run on each node"
    ),
    "quiet": "only the likely cause of a failure is printed anyway",
}
