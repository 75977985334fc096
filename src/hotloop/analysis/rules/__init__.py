"""The rules hotloop comes with: small functions that look at a run and say what would help, or nothing."""

from hotloop.analysis.rules import items, learner, memory, overall, pictures, policy, side_jobs, workers

BUILT_IN = (
    items.replay_item_by_item,
    items.per_item_calls,
    items.batch_item_by_item,
    learner.too_many_updates,
    learner.transfers_one_by_one,
    learner.synchronising_calls,
    policy.policy_one_by_one,
    policy.too_few_envs,
    policy.policy_without_inference_mode,
    workers.env_workers_cost_more,
    workers.envs_one_after_another,
    workers.loader_workers,
    workers.thread_oversubscription,
    workers.one_thread,
    workers.starved_learner,
    workers.lock_wait,
    side_jobs.logging_too_often,
    side_jobs.evaluation_too_often,
    side_jobs.checkpoint_too_often,
    side_jobs.costly_resets,
    pictures.rendering_in_python,
    pictures.resizing,
    memory.garbage_collection,
    memory.memory_will_not_fit,
    overall.growing_cost,
    overall.mostly_unnamed,
    overall.costly_regions,
    overall.leave_alone,
)
