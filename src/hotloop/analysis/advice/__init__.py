"""Built-in advice: small functions that look at a run and return a recommendation, or None.

The name of a recommendation is the name of the function that made it.
"""

from hotloop.analysis.advice import (
    batching,
    environment,
    garbage_collection,
    hot_code,
    learner,
    pipeline,
    policy,
    side_jobs,
    whole_run,
    workers,
)

BUILT_IN = (
    hot_code.evaluation_in_the_loop,
    hot_code.slow_idioms,
    hot_code.sleeping_event_loop,
    hot_code.awaits_one_by_one,
    hot_code.busy_threads,
    hot_code.library_parts,
    batching.replay_item_by_item,
    batching.per_item_calls,
    batching.batch_item_by_item,
    learner.boost,
    learner.too_many_updates,
    learner.float64_networks,
    policy.policy_one_by_one,
    policy.too_few_envs,
    workers.env_workers_cost_more_than_work,
    workers.thread_oversubscription,
    workers.try_one_thread,
    workers.starved_learner,
    workers.lock_wait,
    pipeline.experience_dropped,
    pipeline.production_below_consumption,
    pipeline.learner_under_used,
    side_jobs.logging_too_often,
    side_jobs.evaluation_too_often,
    side_jobs.checkpoint_too_often,
    environment.rendering_in_python,
    environment.resizing,
    environment.costly_resets,
    garbage_collection.garbage_collection_pauses,
    hot_code.hottest_code,
    whole_run.growing_cost,
    whole_run.mostly_unnamed,
    whole_run.costly_regions,
    whole_run.leave_alone,
)
