"""Made-up runs for testing advice, as captures: some with a planted defect, some healthy.

Every function in `DEFECTS` returns a capture and the name of the recommendation that must come first. Those
in `OPTIONS` return a capture and the name of the option that must be listed. For the captures in `CLEAN`,
nothing above low impact may be recommended. Region names are mixed on purpose:
hotloop's own, and names as users choose them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hotloop.capture.model import Capture
from hotloop.testing.captures import ProcessSpec, Spec, ThreadSpec, make_capture

US, MS = 1e3, 1e6  # ns
GIB = 1 << 30
TORCH: dict[str, Any] = {"versions": {"torch": "2.5.0"}, "machine": {"threads_env": {"OMP_NUM_THREADS": "1"}}}

Planted = tuple[Capture, str]


def collect(iterations: int, policy_us: float = 120.0, env_us: float = 400.0) -> dict[str, Spec]:
    """A healthy loop: one policy call and one step of all envs per iteration."""
    return {
        "policy_forward": Spec(iterations, policy_us * US, site="train.py:40"),
        "env_step": Spec(iterations, env_us * US, site="train.py:42"),
    }


def learn(updates: int, scale: float = 1.0) -> dict[str, Spec]:
    """A healthy learner, about 3 ms per update."""
    return {
        "learner_forward": Spec(updates, 0.8 * MS * scale, site="train.py:60"),
        "loss": Spec(updates, 0.2 * MS * scale),
        "backward": Spec(updates, 1.4 * MS * scale),
        "optimizer_step": Spec(updates, 0.6 * MS * scale),
    }


# -- one item at a time --------------------------------------------------------------------------


def replay_push_for_each_env() -> Planted:
    """64 envs step at once; their transitions are pushed one by one."""
    push = {"replay_push": Spec(64 * 1000, 12 * US, site="train.py:50")}
    loop = {**collect(1000), **push, **learn(100)}
    return make_capture(loop, env_steps=64 * 1000, updates=100), "replay_item_by_item"


def memory_store_for_each_env() -> Planted:
    """The same with other names, nested in a loop region."""
    inner = {
        "think": Spec(500, 200 * US),
        "world": Spec(500, 500 * US),
        "memory_store": Spec(16 * 500, 60 * US, site="agent.py:77"),
    }
    loop = {"iteration": Spec(500, 5 * US, inner)}
    return make_capture(loop, env_steps=16 * 500), "replay_item_by_item"


def features_for_each_env() -> Planted:
    """A feature is computed env by env in a Python loop."""
    loop = {**collect(800), "flood_fill": Spec(32 * 800, 40 * US, site="features.py:9"), **learn(80)}
    return make_capture(loop, env_steps=32 * 800, updates=80), "per_item_calls"


def batch_of_samples_one_by_one() -> Planted:
    """Each update fetches 64 samples one by one."""
    work = Spec(500, 3 * MS, {"pick_one": Spec(64 * 500, 90 * US, site="buffer.py:31")})
    loop = {**collect(2000), "improve": work}
    return make_capture(loop, env_steps=8 * 2000, updates=500), "batch_item_by_item"


# -- learner -------------------------------------------------------------------------------------


def small_ppo_of_stable_baselines3() -> Planted:
    """PPO with an MLP policy on the CPU, on the library's own code."""
    rollout = {"env_step": Spec(2048 * 4, 60 * US), "policy_forward": Spec(2048 * 4, 400 * US)}
    loop = {
        "collect_rollouts": Spec(4, 100 * US, rollout),
        "train": Spec(4, 10 * MS, {**learn(320 * 4, 1.5)}),
        "advantage": Spec(4, 2 * MS),
    }
    model = {
        "algorithm": "stable_baselines3.ppo.ppo.PPO",
        "policy": "ActorCriticPolicy",
        "features_extractor": "FlattenExtractor",
        "device": "cpu",
    }
    facts = {**TORCH, "libraries": [{"pid": 4000, "models": [model]}]}
    return make_capture(loop, env_steps=2048 * 4, updates=320 * 4, facts=facts), "boost"


def small_ppo_of_plain_torch() -> Planted:
    """A training loop in one file: MLPs in nn.Sequential and Adam, on one thread."""
    loop = {
        "env_step": Spec(4096, 60 * US),
        "policy_forward": Spec(4096, 60 * US),
        "learner_forward": Spec(2048, 140 * US),
        "backward": Spec(1024, 600 * US),
        "clip_grad_norm": Spec(1024, 220 * US),
        "optimizer_step": Spec(1024, 460 * US),
    }
    adam = {"class": "Adam", "parameters": 9155, "mlp_parameters": 9155, "dtypes": ["float32"], "steps": 1024}
    facts = {**TORCH, "libraries": [{"pid": 4000, "optimizers": [adam]}]}
    return make_capture(loop, env_steps=4 * 4096, updates=1024, facts=facts), "boost"


def updates_for_a_quarter_of_256_envs() -> Planted:
    """64 updates per step of 256 envs."""
    loop = {**collect(100), "replay_sample": Spec(6400, 150 * US), **learn(6400)}
    return make_capture(loop, env_steps=256 * 100, updates=6400), "too_many_updates"


def three_updates_for_each_step() -> Planted:
    """One env, three updates after each step, other names."""
    work = Spec(3000, 0.1 * MS, {"q_forward": Spec(3000, 0.4 * MS), "backprop": Spec(3000, 0.6 * MS)})
    loop = {"choose_action": Spec(1000, 90 * US), "env": Spec(1000, 60 * US), "fit": work}
    return make_capture(loop, env_steps=1000, updates=3000), "too_many_updates"


def backward_for_each_sample() -> Planted:
    """32 forward and backward passes for each step of the optimizer."""
    learner = {
        "learner_forward": Spec(32 * 100, 200 * US, site="train.py:60"),
        "backward": Spec(32 * 100, 350 * US, site="train.py:62"),
        "optimizer_step": Spec(100, 600 * US),
    }
    return make_capture({**collect(1000), **learner}, env_steps=16_000, updates=100), "backward_one_by_one"


def networks_in_double_precision() -> Planted:
    """All parameters are float64, and networks take most of the time."""
    optimizer = {"class": "Adam", "parameters": 130_000, "dtypes": ["float64"], "steps": 900}
    facts = {**TORCH, "libraries": [{"pid": 4000, "optimizers": [optimizer]}]}
    loop = {**collect(900), **learn(900)}
    return make_capture(loop, env_steps=900, updates=900, facts=facts), "float64_networks"


def table_of_vectors_stepped_as_a_whole() -> Planted:
    """A table of 160,000 vectors with dense gradients."""
    optimizer = {"class": "Adam", "parameters": 5_200_000, "largest": [160_000, 32], "dtypes": ["float32"]}
    facts = {**TORCH, "libraries": [{"pid": 4000, "optimizers": [optimizer | {"steps": 200}]}]}
    learner = {
        "learner_forward": Spec(200, 800 * US),
        "backward": Spec(200, 4 * MS, site="train.py:76"),
        "optimizer_step": Spec(200, 9 * MS, site="train.py:77"),
    }
    return make_capture(learner, updates=200, facts=facts), "dense_embedding"


# -- policy --------------------------------------------------------------------------------------


def policy_called_env_by_env() -> Planted:
    """16 envs step at once, the policy is called 16 times."""
    loop = {
        "select_action": Spec(16 * 500, 110 * US, site="agent.py:12"),
        "vec_env_step": Spec(500, 900 * US),
        **learn(50),
    }
    return make_capture(loop, env_steps=16 * 500, updates=50, facts=TORCH), "policy_one_by_one"


def one_env_for_each_policy_call() -> Planted:
    """A cheap env, a network called for one observation at a time."""
    loop = {
        "policy_forward": Spec(4000, 180 * US, site="train.py:40"),
        "env_step": Spec(4000, 30 * US),
        **learn(120),
    }
    return make_capture(loop, env_steps=4000, updates=120, facts=TORCH), "too_few_envs"


# -- workers -------------------------------------------------------------------------------------


def cheap_envs_in_processes() -> Planted:
    """Four processes step envs that take 10 us; the hand-over takes 300 us."""
    worker = ThreadSpec({"env_step": Spec(3000, 10 * US)}, cpu=0.1)
    loop = {
        "policy_forward": Spec(3000, 80 * US),
        "ipc_send": Spec(3000, 60 * US),
        "ipc_wait": Spec(3000, 240 * US, site="vec.py:88"),
    }
    processes = [ProcessSpec([worker], label=f"env-{i}") for i in range(4)]
    capture = make_capture(loop, env_steps=4 * 3000, processes=processes, facts=TORCH, cpu=0.4)
    return capture, "env_workers_cost_more_than_work"


def eight_threads_in_each_of_eight_processes() -> Planted:
    """Nine processes with eight threads each on eight cores; the learner has a core half of the time."""
    worker = ThreadSpec(
        {"env_step": Spec(2000, MS), "policy_forward": Spec(2000, MS)}, cpu=0.5, env_steps=2000
    )
    processes = [ProcessSpec([worker], label=f"collector-{i}") for i in range(8)]
    facts = {"versions": {"torch": "2.5.0"}, "machine": {"threads_env": {}}}
    capture = make_capture(learn(1400), updates=1400, processes=processes, facts=facts, cpu=0.5)
    return capture, "thread_oversubscription"


def learner_without_experience() -> Planted:
    """The learner waits half of the time for two busy collectors; five cores are free."""
    collector = ThreadSpec(
        {"env_step": Spec(3000, 1.4 * MS), "policy_forward": Spec(3000, 0.5 * MS)}, env_steps=3000
    )
    processes = [ProcessSpec([collector], label=f"collector-{i}") for i in range(2)]
    loop = {"queue_get_wait": Spec(900, 3.3 * MS, site="learner.py:18"), **learn(900)}
    capture = make_capture(loop, updates=900, processes=processes, facts=TORCH, cpu=0.5)
    return capture, "starved_learner"


def collectors_at_one_lock() -> Planted:
    """Four collectors queue for one lock around the shared buffer."""
    work = {"env_step": Spec(2000, 0.8 * MS), "lock_wait": Spec(2000, 1.0 * MS, site="shared.py:25")}
    collector = ThreadSpec(work, env_steps=2000)
    processes = [ProcessSpec([collector], label=f"collector-{i}") for i in range(4)]
    loop = {"lock_wait": Spec(1000, 0.7 * MS, site="shared.py:25"), **learn(1000)}
    return make_capture(loop, updates=1000, processes=processes, facts=TORCH), "lock_wait"


# -- pipelines of collectors and a learner -------------------------------------------------------


def _pipeline(loop: dict[str, Spec], updates: int, waiting_ms: float = 0.0) -> Capture:
    """Two collectors that wait `waiting_ms` after each of 3000 steps, and a learner."""
    work = {"env_step": Spec(3000, 0.7 * MS), "policy_forward": Spec(3000, 0.4 * MS)}
    if waiting_ms:
        work["ipc_wait"] = Spec(3000, waiting_ms * MS)
    collector = ThreadSpec(work, env_steps=3000)
    processes = [ProcessSpec([collector], label=f"collector-{i}") for i in range(2)]
    return make_capture(loop, updates=updates, processes=processes, facts=TORCH)


def rows_dropped_from_a_full_queue() -> Planted:
    """A fifth of all transitions is dropped because the queue is full."""
    push = {"replay_push": Spec(12, 5 * MS, bytes_moved=4e6), "rows_dropped": Spec(12, US, bytes_moved=1e6)}
    return _pipeline({**push, **learn(1100)}, 1100, waiting_ms=0.05), "experience_dropped"


def learner_that_waits_a_little() -> Planted:
    """The learner waits an eighth of its time for collectors that never wait."""
    wait = {"ipc_wait": Spec(1000, 0.45 * MS, site="learner.py:18")}
    return _pipeline({**wait, **learn(1000)}, 1000), "production_below_consumption"


def learner_that_sorts_experience() -> Planted:
    """A third of the learner's time goes into sorting what the collectors sent."""
    sort = {"sort_rows": Spec(40, 32 * MS, site="learner.py:30")}
    return _pipeline({**sort, **learn(800)}, 800, waiting_ms=0.1), "learner_under_used"


# -- side jobs -----------------------------------------------------------------------------------


def log_line_in_every_iteration() -> Planted:
    """Writing a line after each iteration takes a third of the time."""
    loop = {**collect(2000), "write_metrics": Spec(2000, 450 * US, site="train.py:90"), **learn(60)}
    return make_capture(loop, env_steps=8 * 2000, updates=60), "logging_too_often"


def report_in_every_epoch() -> Planted:
    """Ranks of Ray Train spend half of their time reporting."""
    report = Spec(20, 8 * MS, {"queue_put": Spec(20, 7 * MS, category="wait")}, site="train.py:31")
    return make_capture({**learn(200), "train_report": report}, updates=200), "reports_too_often"


def evaluation_every_100_iterations() -> Planted:
    """Evaluation takes as long as training."""
    test = Spec(20, 0, {"eval_episode": Spec(200, 6 * MS)}, category="evaluation", site="train.py:101")
    return make_capture({**collect(2000), "test": test}, env_steps=8 * 2000), "evaluation_too_often"


def evaluation_without_its_name() -> Planted:
    """A region that plays extra episodes, with a name that says nothing."""
    play = Spec(15, 0, {"act": Spec(9000, 60 * US), "env_step": Spec(9000, 50 * US)}, site="train.py:101")
    loop = {"act": Spec(6000, 60 * US), "env_step": Spec(6000, 50 * US), "how_good": play}
    return make_capture(loop, env_steps=8 * 6000), "evaluation_too_often"


def checkpoint_every_second() -> Planted:
    """The whole buffer is saved again and again."""
    loop = {**collect(2000), "save_all": Spec(25, 20 * MS, site="train.py:110")}
    return make_capture(loop, env_steps=8 * 2000), "checkpoint_too_often"


def resets_that_build_everything() -> Planted:
    """A reset costs as much as a hundred steps."""
    loop = {**collect(3000, env_us=150), "env_reset": Spec(100, 12 * MS, site="env.py:30"), **learn(40)}
    return make_capture(loop, env_steps=4 * 3000, updates=40, episodes=100), "costly_resets"


# -- frames --------------------------------------------------------------------------------------


def board_drawn_piece_by_piece() -> Planted:
    """An RGB observation is drawn in Python at each step."""
    pieces = {
        "env_rgb_draw_grid": Spec(1500, 700 * US),
        "env_rgb_draw_walls": Spec(1500, 500 * US),
        "env_rgb_draw_robots": Spec(1500, 300 * US),
    }
    step = Spec(1500, 90 * US, {"env_rgb_rendering": Spec(1500, 50 * US, pieces, site="board.py:60")})
    loop = {"policy_forward": Spec(1500, 250 * US), "env_step": step, **learn(100)}
    return make_capture(loop, env_steps=1500, updates=100, facts=TORCH), "rendering_in_python"


def frame_shrunk_at_each_step() -> Planted:
    """A large frame is drawn fast and shrunk slowly."""
    step = Spec(
        2000, 200 * US, {"shrink_frame": Spec(2000, 1.1 * MS, category="rendering", site="wrappers.py:14")}
    )
    loop = {"policy_forward": Spec(2000, 200 * US), "env_step": step, **learn(100)}
    return make_capture(loop, env_steps=2000, updates=100, facts=TORCH), "resizing"


# -- growth and memory ---------------------------------------------------------------------------


def list_buffer_that_slows_down() -> Planted:
    """Sampling from a list costs more as it grows."""
    loop = {
        **collect(3000),
        "draw_batch": Spec(750, 3 * MS, growth=0.9, site="buffer.py:22"),
        **learn(750, 0.3),
    }
    return make_capture(loop, env_steps=8 * 3000, updates=750), "growing_cost"


def log_that_is_rewritten() -> Planted:
    """The whole log is averaged at each of its few lines, while episodes get longer as well."""
    loop = {**collect(4000), "log": Spec(150, 16 * MS, growth=1.0, site="train.py:95")}
    capture = make_capture(loop, env_steps=8 * 4000, episodes=300, length_growth=0.5)
    return capture, "growing_cost"


def collector_pauses_everywhere() -> Planted:
    """The garbage collector runs inside every region, for a third of the time."""
    pause = {"gc_pause": Spec(8, 60 * MS, category="framework")}
    loop = {
        "choose": Spec(3000, 100 * US, pause),
        "world": Spec(3000, 150 * US, pause),
        "keep": Spec(3000, 40 * US, pause),
        "fit": Spec(300, 800 * US),
    }
    return make_capture(loop, env_steps=3000, updates=300), "garbage_collection_pauses"


DEFECTS: tuple[Callable[[], Planted], ...] = (
    replay_push_for_each_env,
    memory_store_for_each_env,
    features_for_each_env,
    batch_of_samples_one_by_one,
    small_ppo_of_stable_baselines3,
    small_ppo_of_plain_torch,
    backward_for_each_sample,
    networks_in_double_precision,
    networks_in_double_precision,
    table_of_vectors_stepped_as_a_whole,
    policy_called_env_by_env,
    cheap_envs_in_processes,
    eight_threads_in_each_of_eight_processes,
    learner_without_experience,
    collectors_at_one_lock,
    rows_dropped_from_a_full_queue,
    learner_that_waits_a_little,
    learner_that_sorts_experience,
    log_line_in_every_iteration,
    report_in_every_epoch,
    evaluation_every_100_iterations,
    evaluation_without_its_name,
    checkpoint_every_second,
    resets_that_build_everything,
    board_drawn_piece_by_piece,
    frame_shrunk_at_each_step,
    list_buffer_that_slows_down,
    log_that_is_rewritten,
    collector_pauses_everywhere,
)

# Runs in which another amount of work would be faster: an option, since it changes training.
OPTIONS: tuple[Callable[[], Planted], ...] = (
    updates_for_a_quarter_of_256_envs,
    three_updates_for_each_step,
    one_env_for_each_policy_call,
)


# -- healthy runs --------------------------------------------------------------------------------


def clean_ppo() -> Capture:
    """Synchronous PPO: n_envs=32, n_steps=128, 4 epochs of 4 batches."""
    rollout = {
        "policy_forward": Spec(128 * 15, 300 * US),
        "env_step": Spec(128 * 15, 900 * US),
        "store": Spec(128 * 15, 20 * US),
    }
    loop = {
        "rollout": Spec(15, 100 * US, rollout),
        "advantage": Spec(15, 2 * MS),
        **learn(240, 3.0),
        "log": Spec(15, 300 * US),
    }
    return make_capture(loop, env_steps=32 * 128 * 15, updates=240, episodes=200, facts=TORCH, rss=GIB)


def clean_ppo_that_learns() -> Capture:
    """The same with other names; episodes get longer, which is no defect."""
    loop = {
        "act": Spec(2000, 250 * US),
        "simulate": Spec(2000, 700 * US),
        "gae": Spec(16, 3 * MS),
        "minibatch": Spec(256, 0, {"forward": Spec(256, 2 * MS), "backprop": Spec(256, 4 * MS)}),
    }
    done: dict[str, Any] = {"env_steps": 32 * 2000, "updates": 256, "episodes": 400}
    return make_capture(loop, **done, length_growth=1.0, facts=TORCH, noise=0.15, seed=3)


def clean_dqn() -> Capture:
    """DQN with 16 envs, one write and at most one update per iteration."""
    loop = {
        **collect(3000, policy_us=150, env_us=500),
        "replay_push": Spec(3000, 15 * US),
        "replay_sample": Spec(750, 120 * US),
        **learn(750),
        "evaluate": Spec(3, 20 * MS),
    }
    return make_capture(loop, env_steps=16 * 3000, updates=750, episodes=120, facts=TORCH, rss=(GIB, 2 * GIB))


def clean_sac() -> Capture:
    """SAC with one env and one update per step: slow by design, the learner is the work."""
    loop = {
        "actor": Spec(1500, 150 * US),
        "sim_step": Spec(1500, 200 * US),
        "buffer_add": Spec(1500, 8 * US),
        "update": Spec(1500, 50 * US, {"critic_loss": Spec(1500, MS), "backward": Spec(1500, 2 * MS)}),
    }
    return make_capture(loop, env_steps=1500, updates=1500, facts=TORCH, noise=0.1)


def clean_costly_policy() -> Capture:
    """A policy call for 8 envs takes longer than the learner's forward pass; nothing says why."""
    loop = {
        "get_action": Spec(1500, 900 * US, site="agent.py:20"),
        "env_step": Spec(1500, 500 * US),
        **learn(700),
    }
    return make_capture(loop, env_steps=8 * 1500, updates=700, facts=TORCH)


def clean_resets_inside_steps() -> Capture:
    """TorchRL steps and resets in one call; the name has both words."""
    loop = {
        "policy_forward": Spec(3000, 150 * US),
        "step_and_maybe_reset": Spec(3000, 500 * US, category="environment"),
        "before env_reset": Spec(40, 9 * MS, category="other"),
        **learn(200),
    }
    return make_capture(loop, env_steps=16 * 3000, updates=200, episodes=40, facts=TORCH)


def clean_vector_env_in_processes() -> Capture:
    """Eight env processes that a learner drives step by step, with a fork server that only imports."""
    worker = ThreadSpec({"env_step": Spec(1500, 1.4 * MS)}, cpu=0.5)
    server = ThreadSpec({"import": Spec(40, MS)}, cpu=0.1)
    loop = {
        "policy_forward": Spec(1500, 200 * US),
        "AsyncVectorEnv.step_wait": Spec(1500, 1.6 * MS),
        **learn(90),
    }
    processes = [ProcessSpec([worker], label=f"env-{i}") for i in range(8)] + [ProcessSpec([server])]
    return make_capture(loop, env_steps=8 * 1500, updates=90, processes=processes, facts=TORCH)


def clean_pipeline() -> Capture:
    """Collectors and a learner in parallel, all busy, one compute thread each."""
    work = {
        "env_step": Spec(4000, 0.8 * MS),
        "policy_forward": Spec(4000, 0.25 * MS),
        "ipc_send": Spec(40, 0.5 * MS),
    }
    collector = ThreadSpec(work, env_steps=16 * 4000)
    processes = [ProcessSpec([collector], label=f"collector-{i}") for i in range(6)]
    loop = {"queue_wait": Spec(400, 0.9 * MS), "replay_push": Spec(400, 0.4 * MS), **learn(1300)}
    return make_capture(loop, updates=1300, processes=processes, facts=TORCH, cpu=0.9)


CLEAN: tuple[Callable[[], Capture], ...] = (
    clean_ppo,
    clean_ppo_that_learns,
    clean_dqn,
    clean_sac,
    clean_costly_policy,
    clean_resets_inside_steps,
    clean_vector_env_in_processes,
    clean_pipeline,
)
