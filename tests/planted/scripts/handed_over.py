"""Defect: four cheap games live in processes of their own; talking to them costs more than the games."""

import multiprocessing

import gymnasium as gym
from _pace import turns

from hotloop import profile, progress

GAMES = 4


def serve(pipe):
    game = gym.make("CartPole-v1")
    game.reset(seed=0)
    while (move := pipe.recv()) is not None:
        with profile("game_step", "environment"):
            state, reward, terminated, truncated, _ = game.step(move)
            if terminated or truncated:
                state, _ = game.reset()
        pipe.send((state, reward, terminated, truncated))
    pipe.close()


if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    pipes, workers = [], []
    for _ in range(GAMES):
        mine, theirs = context.Pipe()
        pipes.append(mine)
        workers.append(context.Process(target=serve, args=(theirs,)))
        workers[-1].start()
    states = [[0.0] * 4] * GAMES
    for _ in turns(3500):
        with profile("think"):
            moves = [int(state[2] > 0) for state in states]
        with profile("hand_over"):
            for pipe, move in zip(pipes, moves, strict=True):
                pipe.send(move)
            states = [pipe.recv()[0] for pipe in pipes]
        progress(env_steps=GAMES)
    for pipe in pipes:
        pipe.send(None)
    for worker in workers:
        worker.join()
