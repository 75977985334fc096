"""The fixed names of regions and their categories, which all captures share."""

from __future__ import annotations

# A trailing * makes it a prefix.
FIXED_NAMES: dict[str, str] = {
    "env_step": "environment",
    "env_reset": "environment",
    "env_render": "rendering",
    "env_rgb_*": "rendering",
    "policy_forward": "policy",
    "policy_rest": "policy",
    "policy_value": "policy",
    "evaluate_forward": "evaluation",
    "advantage": "advantage",
    "replay_push": "replay",
    "replay_sample": "replay",
    "learner_forward": "model",
    "loss": "loss",
    "backward": "backward",
    "optimizer_step": "optimizer",
    "transfer": "transfer",
    "ipc_send": "ipc",
    "ipc_wait": "wait",
    "spin_wait": "wait",
    "lock_wait": "wait",
    "weights_sync": "ipc",
    "log": "logging",
    "evaluate": "evaluation",
    "checkpoint": "checkpoint",
    "data_load": "data",
    "disk_write": "data",
    "compile": "compilation",
    "convlstm_*": "model",
    "recurrent_policy_*": "policy",
    "hotloop_*": "hotloop",
}

# Regions in which a rank waits for the others.
COLLECTIVE_REGIONS = ("collective", "work_wait")

# Beginning of the names of regions in which hotloop itself works.
OUR_OWN = "hotloop_"

# Waits of threads that stay on a core and ask again and again.
SPINNING_REGIONS = ("spin_wait",)

# Of Ray: a worker between two tasks, and the beginning of "wait for Class.method" in who asks for results.
RAY_IDLE, RAY_TASK, RAY_WAIT_FOR = "ray_idle", "ray_task", "wait for "
