"""Acting is distinguished from learning: acting calls equal env steps in scripts of every common kind.

Each script counts its own acting calls; steps with random actions make none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import nn

from hotloop.instrument import acting_or_learning, step_counting
from hotloop.instrument.libraries import Instrumentation
from hotloop.instrument.update_counting import begin_training
from hotloop.measure.profiler import default

F = nn.functional
random = np.random.default_rng(0)


@pytest.fixture(scope="module")
def instrumented() -> Iterator[Instrumentation]:
    instrument = Instrumentation()
    instrument.install()
    yield instrument
    assert instrument.remove() == []


def count(instrumented: Instrumentation, script: Callable[[], int | None]) -> dict[str, Any]:
    """Run a script; returns its calls by region, with its own number of acting calls as `expected`."""
    acting_or_learning.reset()
    step_counting.drop_observations()
    step_counting.trains = False
    begin_training()
    torch.manual_seed(0)
    global random
    random = np.random.default_rng(0)
    default.start()
    try:
        expected = script()
        found = {name: stats.calls for name, stats in default.stats().items()}
        progress = default.capture().progress
        found["updates"], found["env_steps"] = progress.updates, progress.env_steps
        found["episodes"], found["return_sum"] = progress.episodes, progress.return_sum
    finally:
        default.stop()
    if expected is not None:
        found["expected"] = expected
    found["rows"] = max(acting_or_learning._policy_rows, default=0)
    return found


def network(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 8), nn.Tanh(), nn.Linear(8, outputs))


def make_envs(count: int, name: str = "CartPole-v1") -> Any:
    return gymnasium.vector.SyncVectorEnv([lambda: gymnasium.make(name) for _ in range(count)])


class Replay:
    def __init__(self) -> None:
        self.rows: list[tuple[Any, ...]] = []

    def sample(self, batch_size: int = 16) -> tuple[torch.Tensor, ...]:
        rows = [self.rows[i] for i in random.integers(len(self.rows), size=batch_size)]
        columns = zip(*rows, strict=True)
        return tuple(torch.as_tensor(np.concatenate(column), dtype=torch.float32) for column in columns)


def gradient_step(optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


STEPS, STARTS = 120, 40


def off_policy(name: str, act: Callable[[Any], Any], learn: Callable[..., None]) -> int:
    """The loop of an off-policy script; returns how many actions the policy chose."""
    envs = make_envs(1, name)
    replay, acting = Replay(), 0
    envs.action_space.seed(0)
    observations, _ = envs.reset(seed=0)
    for step in range(STEPS):
        if step < STARTS or random.random() < 0.2:
            actions = envs.action_space.sample()
        else:
            actions = act(observations)
            acting += 1
        following, rewards, terminated, _, _ = envs.step(actions)
        replay.rows.append((observations, actions, rewards, following, terminated))
        observations = following
        if step >= STARTS:
            learn(step, *replay.sample())
    envs.close()
    return acting


def test_dqn(instrumented: Instrumentation) -> None:
    def script() -> int:
        online, target = network(4, 2), network(4, 2)
        optimizer = torch.optim.Adam(online.parameters())

        def act(observations: Any) -> Any:
            values = online(torch.Tensor(observations))  # with gradients on
            return values.argmax(dim=1).numpy()

        def learn(step: int, obs: Any, act: Any, rew: Any, nxt: Any, end: Any) -> None:
            with torch.no_grad():
                goal = rew + 0.99 * target(nxt).max(dim=1).values * (1 - end)
            chosen = online(obs).gather(1, act.long().unsqueeze(1)).squeeze(1)
            gradient_step(optimizer, F.mse_loss(chosen, goal))

        return off_policy("CartPole-v1", act, learn)

    found = count(instrumented, script)
    assert found["policy_forward"] == found["expected"] > 40
    assert found["learner_forward"] == 2 * (STEPS - STARTS) and found["updates"] == STEPS - STARTS
    assert "policy_value" not in found and "policy_rest" not in found


class Distributional(nn.Module):
    """C51: acting and learning share a method, which the loss calls for the target's best actions."""

    def __init__(self) -> None:
        super().__init__()
        self.network = network(4, 2 * 5)
        self.register_buffer("atoms", torch.linspace(0, 10, 5))
        self.atoms: torch.Tensor

    def get_action(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        probabilities = self.network(x).view(len(x), 2, 5).softmax(dim=2)
        actions = (probabilities * self.atoms).sum(2).argmax(1)
        return actions, probabilities[torch.arange(len(x)), actions]


def test_c51(instrumented: Instrumentation) -> None:
    def script() -> int:
        online, target = Distributional(), Distributional()
        optimizer = torch.optim.Adam(online.parameters())

        def act(observations: Any) -> Any:
            return online.get_action(torch.Tensor(observations))[0].numpy()

        def learn(step: int, obs: Any, act: Any, rew: Any, nxt: Any, end: Any) -> None:
            with torch.no_grad():
                _, goal = target.get_action(nxt)
            _, chosen = online.get_action(obs)
            gradient_step(optimizer, -(goal * chosen.clamp(1e-5).log()).sum(-1).mean())

        return off_policy("CartPole-v1", act, learn)

    found = count(instrumented, script)
    assert found["policy_forward"] == found["expected"] > 40
    assert found["learner_forward"] == 2 * (STEPS - STARTS)


class Critic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = network(4, 1)

    def forward(self, observations: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        return self.body(torch.cat([observations, actions], 1)).squeeze(1)


@pytest.mark.parametrize("policy_frequency", [1, 2], ids=["ddpg", "td3"])
def test_ddpg_and_td3(instrumented: Instrumentation, policy_frequency: int) -> None:
    def script() -> int:
        actor, critic, actor_target, critic_target = network(3, 1), Critic(), network(3, 1), Critic()
        actor_optimizer = torch.optim.Adam(actor.parameters())
        critic_optimizer = torch.optim.Adam(critic.parameters())

        def act(observations: Any) -> Any:
            with torch.no_grad():
                return (actor(torch.Tensor(observations)) + torch.randn(1, 1)).numpy().clip(-2, 2)

        def learn(step: int, obs: Any, act: Any, rew: Any, nxt: Any, end: Any) -> None:
            with torch.no_grad():
                goal = rew + 0.99 * critic_target(nxt, actor_target(nxt))
            gradient_step(critic_optimizer, F.mse_loss(critic(obs, act), goal))
            if step % policy_frequency == 0:
                gradient_step(actor_optimizer, -critic(obs, actor(obs)).mean())

        return off_policy("Pendulum-v1", act, learn)

    found = count(instrumented, script)
    updates = STEPS - STARTS
    assert found["policy_forward"] == found["expected"] > 40
    assert found["learner_forward"] == 3 * updates + 2 * updates // policy_frequency
    assert (found["updates"], found["optimizer_step"]) == (updates, updates + updates // policy_frequency)


class Gaussian(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = network(3, 2)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, log_std = self.body(x).chunk(2, dim=1)
        return mean, log_std.clamp(-5, 2)

    def get_action(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, log_std = self(x)
        normal = torch.distributions.Normal(mean, log_std.exp())
        action = normal.rsample()
        return action.tanh(), normal.log_prob(action).squeeze(1)


@pytest.mark.parametrize("policy_frequency", [1, 2])
def test_sac(instrumented: Instrumentation, policy_frequency: int) -> None:
    def script() -> int:
        actor, critic, target = Gaussian(), Critic(), Critic()
        log_alpha = torch.zeros(1, requires_grad=True)
        critic_optimizer = torch.optim.Adam(critic.parameters())
        actor_optimizer = torch.optim.Adam(actor.parameters())
        alpha_optimizer = torch.optim.Adam([log_alpha])

        def act(observations: Any) -> Any:
            return actor.get_action(torch.Tensor(observations))[0].detach().numpy()

        def learn(step: int, obs: Any, act: Any, rew: Any, nxt: Any, end: Any) -> None:
            with torch.no_grad():
                actions, log_probs = actor.get_action(nxt)
                goal = rew + 0.99 * (target(nxt, actions) - log_probs)
            gradient_step(critic_optimizer, F.mse_loss(critic(obs, act), goal))
            if step % policy_frequency:
                return
            for _ in range(policy_frequency):  # makes up for the delay
                actions, log_probs = actor.get_action(obs)
                gradient_step(actor_optimizer, (log_probs - critic(obs, actions)).mean())
                with torch.no_grad():
                    _, log_probs = actor.get_action(obs)
                gradient_step(alpha_optimizer, -(log_alpha.exp() * (log_probs - 1)).mean())

        return off_policy("Pendulum-v1", act, learn)

    found = count(instrumented, script)
    updates = STEPS - STARTS
    assert found["policy_forward"] == found["expected"] > 40
    assert found["learner_forward"] == 6 * updates
    assert (found["updates"], found["optimizer_step"]) == (updates, 3 * updates)


class ActorCritic(nn.Module):
    """PPO: one method for acting and learning, two networks, or a trunk with two heads."""

    def __init__(self, shared: bool):
        super().__init__()
        self.trunk: nn.Module | None = nn.Sequential(nn.Linear(4, 6), nn.Tanh()) if shared else None
        self.actor, self.critic = network(6 if shared else 4, 2), network(6 if shared else 4, 1)

    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        return x if self.trunk is None else self.trunk(x)

    def get_value(self, x: torch.Tensor) -> torch.Tensor:
        return self.critic(self.hidden(x))

    def get_action_and_value(self, x: torch.Tensor, action: Any = None) -> tuple[torch.Tensor, ...]:
        hidden = self.hidden(x)
        distribution = torch.distributions.Categorical(logits=self.actor(hidden))
        if action is None:
            action = distribution.sample()
        return action, distribution.log_prob(action), self.critic(hidden)


N_STEPS, ROLLOUTS = 40, 3


def ppo(
    agent: ActorCritic, n_envs: int, batch_size: int, prepare: Callable[[Any], Any] = torch.Tensor
) -> int:
    envs = make_envs(n_envs)
    optimizer = torch.optim.Adam(agent.parameters())
    observations = prepare(envs.reset(seed=0)[0])
    for _ in range(ROLLOUTS):
        rows = []
        for _ in range(N_STEPS):
            with torch.no_grad():
                actions, log_probs, _ = agent.get_action_and_value(observations)
            rows.append((observations, actions, log_probs))
            observations = prepare(envs.step(actions.numpy())[0])
        with torch.no_grad():
            agent.get_value(observations)
        data = [torch.cat(column) for column in zip(*rows, strict=True)]
        for start in range(0, N_STEPS * n_envs, batch_size):
            x, a, old = (column[start : start + batch_size] for column in data)
            _, new, value = agent.get_action_and_value(x, a)
            gradient_step(optimizer, ((new - old).exp() + value.squeeze(1)).mean())
    envs.close()
    return N_STEPS * ROLLOUTS


@pytest.mark.parametrize("batch_size", [20, 4], ids=["minibatches", "as many rows as envs"])
@pytest.mark.parametrize("shared", [False, True], ids=["two networks", "shared trunk"])
def test_ppo(instrumented: Instrumentation, shared: bool, batch_size: int) -> None:
    found = count(instrumented, lambda: ppo(ActorCritic(shared), 4, batch_size))
    updates, parts = ROLLOUTS * N_STEPS * 4 // batch_size, 3 if shared else 2
    assert found["policy_forward"] == found["env_step"] == found["expected"]
    assert found["policy_rest"] == (parts - 1) * found["expected"]
    # the value of the last observation: of the trunk and of the head
    assert found["policy_value"] + found["learner_forward"] == ROLLOUTS * (parts - 1) + parts * updates
    assert found["policy_value"] >= ROLLOUTS and found["updates"] == updates
    assert found["rows"] == 4


def test_observations_that_the_script_transforms(instrumented: Instrumentation) -> None:
    def normalised(observations: Any) -> torch.Tensor:
        return torch.Tensor((observations - 0.5) / 3)

    found = count(instrumented, lambda: ppo(ActorCritic(False), 4, 20, normalised))
    assert found["policy_forward"] == found["env_step"] == found["policy_rest"]
    assert found["policy_value"] + found["learner_forward"] == ROLLOUTS + 2 * ROLLOUTS * 8


def test_recurrent_ppo(instrumented: Instrumentation) -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.actor, self.critic = nn.LSTM(4, 8), nn.Linear(8, 2), nn.Linear(8, 1)

        def act(self, x: torch.Tensor, state: Any) -> tuple[Any, ...]:
            hidden, state = self.lstm(x.unsqueeze(0), state)
            return self.actor(hidden[0]), self.critic(hidden[0]), state

    def script() -> int:
        agent, envs = Recurrent(), make_envs(2)
        optimizer = torch.optim.Adam(agent.parameters())
        observations = torch.Tensor(envs.reset(seed=0)[0])
        state = (torch.zeros(1, 2, 8), torch.zeros(1, 2, 8))
        for _ in range(ROLLOUTS):
            rows, first = [], state
            for _ in range(N_STEPS):
                rows.append(observations)
                with torch.no_grad():
                    logits, _, state = agent.act(observations, state)
                observations = torch.Tensor(envs.step(logits.argmax(1).numpy())[0])
            with torch.no_grad():
                agent.act(observations, state)
            again, loss = first, torch.zeros(())
            for row in rows:  # through time: one call for each step, as many rows as envs
                logits, value, again = agent.act(row, again)
                loss = loss + logits.mean() + value.mean()
            gradient_step(optimizer, loss)
        envs.close()
        return N_STEPS * ROLLOUTS

    found = count(instrumented, script)
    assert found["policy_forward"] == found["env_step"] == found["expected"]
    assert found["policy_rest"] == 2 * found["expected"]
    assert found["learner_forward"] + found["policy_value"] == ROLLOUTS * 3 * (N_STEPS + 1)
    assert found["updates"] == ROLLOUTS


def test_reinforce_acts_with_gradients_on(instrumented: Instrumentation) -> None:
    def script() -> int:
        policy, env, steps = network(4, 2), gymnasium.make("CartPole-v1"), 0
        optimizer = torch.optim.Adam(policy.parameters())
        for episode in range(5):
            observation, _ = env.reset(seed=episode)
            log_probs, over = [], False
            while not over:
                distribution = torch.distributions.Categorical(logits=policy(torch.as_tensor(observation)))
                action = distribution.sample()
                log_probs.append(distribution.log_prob(action))
                observation, _, terminated, truncated, _ = env.step(int(action))
                over, steps = terminated or truncated, steps + 1
            gradient_step(optimizer, -torch.stack(log_probs).sum())
        return steps

    found = count(instrumented, script)
    assert found["policy_forward"] == found["env_step"] == found["expected"]
    assert "learner_forward" not in found and found["updates"] == 5


class Layers(nn.Module):
    """Calls its layers in a loop, from a method that is not `__call__`."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 8)])
        self.head = nn.Linear(8, 2)

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return torch.as_tensor(self.head(x))


@pytest.mark.parametrize("scale", [1.0, 0.3])
def test_layers_called_in_a_loop_are_one_action(instrumented: Instrumentation, scale: float) -> None:
    """Also where the observation is normalised, so that its values are not found again."""

    def script() -> int:
        policy, env = Layers(), gymnasium.make("CartPole-v1")
        optimizer = torch.optim.SGD(policy.parameters(), lr=0.01)
        acted = 0
        for seed in range(3):
            seen = []
            observation, _ = env.reset(seed=seed)
            for _ in range(40):
                x = torch.as_tensor(scale * observation, dtype=torch.float32)[None]
                seen.append(x)
                with torch.no_grad():
                    action = int(policy.logits(x).argmax())
                acted += 1
                observation, _, terminated, _, _ = env.step(action)
                if terminated:
                    observation, _ = env.reset()
            gradient_step(optimizer, policy.logits(torch.cat(seen)).square().mean())
        return acted

    found = count(instrumented, script)
    assert found["policy_forward"] == found["env_steps"] == found["expected"] == 120
    assert found["policy_rest"] == 3 * 120
    assert found["learner_forward"] == 4 * 3


def test_online_actor_critic(instrumented: Instrumentation) -> None:
    """The critic sees the state before and after each step, in the loss."""

    def script() -> int:
        actor, critic, env = network(4, 2), network(4, 1), gymnasium.make("CartPole-v1")
        optimizers = [torch.optim.Adam(net.parameters()) for net in (actor, critic)]
        state, _ = env.reset(seed=0)
        for _ in range(100):
            distribution = torch.distributions.Categorical(logits=actor(torch.as_tensor(state)))
            action = distribution.sample()
            following, reward, terminated, truncated, _ = env.step(int(action))
            value = critic(torch.as_tensor(state))
            goal = float(reward) + 0.99 * critic(torch.as_tensor(following)) * (not terminated)
            error = goal.detach() - value
            gradient_step(optimizers[0], -(distribution.log_prob(action) * error.detach()).sum())
            gradient_step(optimizers[1], error.pow(2).sum())
            state = env.reset()[0] if terminated or truncated else following
        return 100

    found = count(instrumented, script)
    assert found["policy_forward"] == found["env_step"] == found["expected"]
    assert found["learner_forward"] == 200 and found["updates"] == 100


def test_one_env_after_another(instrumented: Instrumentation) -> None:
    """The rows of a vector env one by one, then several envs that the script steps itself."""

    def script() -> None:
        policy, envs = network(4, 2), make_envs(3)
        observations, _ = envs.reset(seed=0)
        for _ in range(50):
            with torch.no_grad():
                actions = [int(policy(torch.Tensor(row)).argmax()) for row in observations]
            observations, *_ = envs.step(np.array(actions))
        several = [gymnasium.make("CartPole-v1") for _ in range(3)]
        seen = [env.reset(seed=0)[0] for env in several]
        for _ in range(50):
            for i, env in enumerate(several):
                action = int(policy(torch.as_tensor(seen[i])).argmax())
                seen[i], _, terminated, truncated, _ = env.step(action)
                if terminated or truncated:
                    seen[i] = env.reset()[0]

    found = count(instrumented, script)
    assert found["policy_forward"] == 150 + 150 and found["env_step"] == 50 + 150
    assert found["rows"] == 1


def test_a_stack_of_envs_that_are_stepped_one_by_one(instrumented: Instrumentation) -> None:
    def script() -> None:
        policy, several = network(4, 2), [gymnasium.make("CartPole-v1") for _ in range(3)]
        seen = [env.reset(seed=0)[0] for env in several]
        for step in range(50):
            if step % 5 == 4:  # the value of the last observations
                with torch.no_grad():
                    policy(torch.as_tensor(np.stack(seen)))
            with torch.no_grad():
                actions = policy(torch.as_tensor(np.stack(seen))).argmax(1)
            for i, env in enumerate(several):
                seen[i], _, terminated, truncated, _ = env.step(int(actions[i]))
                if terminated or truncated:
                    seen[i] = env.reset()[0]

    found = count(instrumented, script)
    assert (found["policy_forward"], found["policy_value"], found["env_step"]) == (50, 10, 150)
    assert found["rows"] == 3


def evaluate_agent(policy: nn.Module, steps: int) -> None:
    env = gymnasium.make("CartPole-v1")
    observation, _ = env.reset(seed=1)
    for _ in range(steps):
        with torch.no_grad():
            action = int(policy(torch.as_tensor(observation)).argmax())
        observation, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            observation, _ = env.reset()


def test_a_function_that_evaluates_is_no_acting(instrumented: Instrumentation) -> None:
    def script() -> None:
        agent = ActorCritic(False)
        for _ in range(2):
            ppo(agent, 2, 20)
            evaluate_agent(agent.actor, 25)

    found = count(instrumented, script)
    assert found["policy_forward"] == 2 * N_STEPS * ROLLOUTS
    assert found["evaluate_forward"] == 50


@pytest.fixture
def without_env(monkeypatch: pytest.MonkeyPatch) -> None:
    """No env has been stepped in this process."""
    monkeypatch.setattr(step_counting, "total_steps", lambda: 0)
    monkeypatch.setattr(step_counting, "counters", lambda: iter(()))


@pytest.mark.usefixtures("without_env")
def test_a_search_that_evaluates_positions_is_no_evaluation(instrumented: Instrumentation) -> None:
    """Tree searches call `evaluate` for each leaf, far more often than anything is learnt."""

    @torch.inference_mode()
    def evaluate(net: nn.Module, leaf: torch.Tensor) -> float:
        return float(net(leaf)[0, 0])

    def script() -> None:
        net = network(4, 1)
        optimizer = torch.optim.Adam(net.parameters())
        for _ in range(4):
            for _ in range(100):
                evaluate(net, torch.ones(1, 4))
            gradient_step(optimizer, net(torch.ones(32, 4)).mean())

    found = count(instrumented, script)
    assert found["evaluate_forward"] < 32 and found["policy_forward"] > 400 - 32


@pytest.mark.usefixtures("without_env")
@pytest.mark.parametrize("batches", [1, 5])
def test_validation_after_each_epoch_is_an_evaluation(instrumented: Instrumentation, batches: int) -> None:
    """On all data at once, or batch by batch, without an env."""

    @torch.no_grad()
    def evaluate(net: nn.Module, data: list[torch.Tensor]) -> float:
        if len(data) == 1:
            return float(net(data[0]).mean())
        total = 0.0
        for batch in data:
            total += float(net(batch).mean())
        return total

    def script() -> None:
        net = network(4, 1)
        optimizer = torch.optim.Adam(net.parameters())
        for _ in range(50):
            gradient_step(optimizer, net(torch.ones(32, 4)).mean())
            evaluate(net, [torch.ones(64, 4)] * batches)

    assert count(instrumented, script)["evaluate_forward"] == 50 * batches


@pytest.mark.parametrize("same_env", [False, True])
def test_what_is_played_to_see_how_good_it_is_counts_as_no_training(
    instrumented: Instrumentation, same_env: bool
) -> None:
    """One written by hand, in an env of its own or in that of training."""

    def script() -> None:
        policy, env = network(4, 2), gymnasium.make("CartPole-v1")

        def play(env: Any, steps: int) -> None:
            observation, _ = env.reset(seed=1)
            for _ in range(steps):
                with torch.no_grad():
                    action = int(policy(torch.as_tensor(observation)).argmax())
                observation, _, terminated, truncated, _ = env.step(action)
                if terminated or truncated:
                    observation, _ = env.reset()

        def run_evaluation() -> None:
            play(env if same_env else gymnasium.make("CartPole-v1"), 25)

        for _ in range(2):
            play(env, 30)
            run_evaluation()

    found = count(instrumented, script)
    assert (found["env_steps"], found["policy_forward"], found["evaluate_forward"]) == (60, 60, 50)
    assert found["env_step"] == 110


def test_evolution_trains_by_what_others_call_evaluating(instrumented: Instrumentation) -> None:
    def script() -> None:
        for _ in range(3):
            evaluate_agent(network(4, 2), 25)

    found = count(instrumented, script)
    assert (found["env_steps"], found["env_step"]) == (75, 75)


class Board:
    """An env that no library knows."""

    def step(self, action: int) -> tuple[np.ndarray[Any, Any], float]:
        return random.random(4, dtype=np.float32), 1.0


@pytest.mark.parametrize("n_envs", [1, 32])
def test_an_env_that_no_library_knows(instrumented: Instrumentation, n_envs: int) -> None:
    def script() -> None:
        policy, target, env = network(4, 2), network(4, 2), Board()
        optimizer = torch.optim.Adam(policy.parameters())
        observation, _ = env.step(0)
        for step in range(60):
            with torch.no_grad():
                action = int(policy(torch.as_tensor(observation).expand(n_envs, 4)).argmax())
            observation, _ = env.step(action)
            if step >= 20:
                loss = policy(torch.rand(16, 4)).mean()
                with torch.no_grad():
                    goal = target(torch.rand(16, 4)).mean()
                gradient_step(optimizer, (loss - goal) ** 2)

    found = count(instrumented, script)
    assert (found["policy_forward"], found["learner_forward"]) == (60, 80)


def test_a_planner_calls_its_model_many_times_for_one_action(instrumented: Instrumentation) -> None:
    def script() -> None:
        model, env = network(4, 2), gymnasium.make("CartPole-v1")
        env.reset(seed=0)
        for _ in range(50):
            with torch.no_grad():
                best = model(torch.rand(32, 4)).sum(0).argmax()
            if any(env.step(int(best))[2:4]):
                env.reset()

    found = count(instrumented, script)
    # The first call cannot be told from a target: nothing has followed it yet.
    assert (found["policy_forward"], found["learner_forward"]) == (49, 1)


class Pixels(gymnasium.Env[Any, int]):
    observation_space = gymnasium.spaces.Dict(
        {"image": gymnasium.spaces.Box(0, 255, (8, 8), np.uint8), "speed": gymnasium.spaces.Box(-1, 1, (2,))}
    )
    action_space = gymnasium.spaces.Discrete(2)  # type: ignore[assignment]

    def _observe(self) -> dict[str, Any]:
        return {"image": random.integers(256, size=(8, 8), dtype=np.uint8), "speed": random.random(2)}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return self._observe(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self._observe(), 1.0, False, False, {}


def test_scaled_images_and_dicts(instrumented: Instrumentation) -> None:
    def script() -> None:
        net, env = nn.Sequential(nn.Flatten(), nn.Linear(64, 2)), Pixels()
        observation, _ = env.reset()
        optimizer = torch.optim.Adam(net.parameters())
        for _ in range(50):
            image = torch.as_tensor(observation["image"]).float() / 255
            action = int(net(image.unsqueeze(0)).argmax())
            observation, *_ = env.step(action)
            gradient_step(optimizer, net(torch.rand(1, 8, 8)).sum())  # a batch of one

    found = count(instrumented, script)
    assert (found["policy_forward"], found["learner_forward"], found["rows"]) == (50, 50, 1)


def test_nothing_is_kept_alive_by_sites(instrumented: Instrumentation) -> None:
    count(instrumented, lambda: ppo(ActorCritic(False), 2, 20))
    assert acting_or_learning.settled and acting_or_learning._sites
    acting_or_learning.reset()
    assert not acting_or_learning.settled and not acting_or_learning._sites
